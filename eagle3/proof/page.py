"""The certificate for a reader: what was tested, and what follows from it."""

from __future__ import annotations

from typing import Any

from eagle3.report.markdown import table


def page(c: dict[str, Any]) -> str:
    """`certificate.md` of a certificate."""
    lossless = c["verdict"] == "lossless"
    parts = [
        "# Certificate\n",
        f"**{'Lossless' if lossless else 'NOT lossless'}.** Target `{c['target']['resolved']}`, "
        f"drafts of {c['settings']['drafted_nodes']} tokens, {c['settings']['depth']} deep.\n",
        "## Greedy\n",
        _greedy(c)
        + f"\n\nA difference passes where both tokens lie within {c['rule']['tie_margin']:g} of "
        "the largest logit, computed again in float64, and at most once in each started "
        f"{c['rule']['tokens_per_tie']:,} tokens.\n",
        _ties(c),
    ]
    if "half_precision" in c:
        half = c["half_precision"]
        parts += [
            f"## Greedy in {half['dtype']}\n",
            _greedy(half) + f"\n\nA difference passes where plain decoding's logits of both tokens "
            f"lie within {half['rule']['tie_margin_ulp']} units in the last place of the largest: "
            "this type cannot tell them apart.\n",
            _ties(half),
        ]
    if "sampling" in c:
        parts += ["## Sampled text\n", _sampling(c["sampling"])]
    parts += ["## What follows\n", _follows(c), "## What it was made of\n", _made_of(c)]
    return "\n".join(part for part in parts if part)


def _greedy(c: dict[str, Any]) -> str:
    return (
        f"{c['prompts']} held-out prompts, {c['tokens']} new tokens, {c['dtype']}: "
        f"{c['mismatches']} prompts with another output than the target's own, "
        f"{c['near_ties']} near ties. The target's own output is that of transformers' `generate`, "
        "with a model loaded afresh and its own attention and cache."
    )


def _ties(c: dict[str, Any]) -> str:
    """Every place where the outputs differ, with its margin."""
    rows = [
        [
            p["id"],
            d["position"],
            d["with_draft"],
            d["reference"],
            _number(d["margin"]),
            _number(d["allowed"]),
            kind,
        ]
        for p in c["by_prompt"]
        for kind, d in [
            *(("near tie", tie) for tie in p["near_ties"]),
            *([("mismatch", p["mismatch"])] if p["mismatch"] else []),
        ]
    ]
    if not rows:
        return ""
    head = ["prompt", "position", "with draft", "reference", "margin", "allowed", ""]
    return "\n".join([*table(head, rows), ""])


def _sampling(s: dict[str, Any]) -> str:
    rows = [
        [
            t["feature"],
            f"{t['total_variation']:.3f}",
            f"{t['p']:.4f}",
            f"{t['p_corrected']:.4f}",
            _number(t["caught_80"]),
            _number(t["caught_95"]),
        ]
        for t in s["tests"]
    ]
    return "\n".join(
        [
            f"{s['prompts']} prompts, {s['texts_of_each_side']} texts of each side at temperature "
            f"{s['temperature']}; {s['rule']['test']}; a false alarm comes once in "
            f"{1 / s['rule']['alpha']:,.0f} proofs. *Caught* is how much probability a fault would "
            "have to move, at that place in every text, to be found with 80% and 95%.\n",
            *table(["", "distance seen", "p", "p, corrected", "caught 80%", "caught 95%"], rows),
            "",
        ]
    )


def _follows(c: dict[str, Any]) -> str:
    if c["verdict"] != "lossless":
        return "With this draft the output is not always the target's own. Do not serve it.\n"
    said = [
        "On these prompts the draft changes no token of greedy decoding, but for the near ties "
        "above. Other prompts were not tried; a draft only proposes, so nothing about a prompt "
        "makes it less safe.",
    ]
    if "half_precision" in c:
        said.append(
            f"In {c['half_precision']['dtype']} the choice between tokens that the type cannot "
            "tell apart depends on the kernels, with a draft and without one."
        )
    if "sampling" in c:
        limit = c["sampling"]["caught_95"]
        said.append(
            "Sampled text shows no sign of another distribution; "
            + (
                f"at any one of the tested places a bias of {limit:g} in total variation would "
                "have shown with 95%. A smaller one could have passed."
                if limit is not None
                else "a bias of 0.6 in total variation could have passed at some place."
            )
        )
    else:
        said.append("Sampled text was not tested in this run (`prove.samples`).")
    return "\n".join(f"- {line}" for line in said) + "\n"


def _made_of(c: dict[str, Any]) -> str:
    facts: dict[str, Any] = {
        **{f"target, {key}": value for key, value in c["target"].items()},
        **{f"draft, {key}": value for key, value in c["draft"].items()},
        **{key: c[key] for key in ("prompts_sha256", "code_sha256", "seed", "device")},
        **{f"version of {key}": value for key, value in c["versions"].items()},
        **c["hardware"],
    }
    rows = "\n".join(table(["", ""], [[key, f"`{value}`"] for key, value in facts.items()]))
    return (
        f"{rows}\n\nTo prove it again and compare: `eagle3 prove RUN --again`, "
        "RUN being the run directory.\n"
    )


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.3g}"
