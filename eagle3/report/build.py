"""The report's content, written once as blocks and rendered as Markdown and as HTML."""

from __future__ import annotations

from pathlib import Path

from eagle3.config import RunConfig
from eagle3.plan import serving
from eagle3.report.blocks import Block, Code, Heading, Picture, Table, Text, as_html, as_markdown
from eagle3.report.facts import Facts
from eagle3.report.parity import parity
from eagle3.report.plots import write_plots
from eagle3.run import write_json


def write_report(run: Path, config: RunConfig) -> Path:
    """Write `RUN/report/`; returns the folder."""
    facts = Facts.read(run, config)
    folder = run / "report"
    folder.mkdir(exist_ok=True)
    pictures = write_plots(facts, folder)
    title = f"EAGLE-3 draft for {facts.target.get('resolved', config.target)}"
    blocks = _blocks(facts, pictures)
    (folder / "report.md").write_text(as_markdown(title, blocks))
    (folder / "report.html").write_text(as_html(title, blocks, folder))
    write_json(folder / "metrics.json", facts.metrics())
    return folder


def _blocks(facts: Facts, pictures: list[str]) -> list[Block]:
    blocks: list[Block] = [Text(_verdict(facts)), *_result(facts)]
    if "speedup.svg" in pictures:
        blocks.append(Picture("speedup", "Speed, and acceptance by position in the draft."))
    blocks += _cost_model(facts)
    blocks += parity(facts)
    blocks += _trained(facts)
    if "loss.svg" in pictures:
        blocks.append(Picture("loss", "Training loss, and acceptance length on held-out answers."))
    blocks += _time(facts)
    config = facts.config
    resolved = facts.target.get("resolved", config.target)
    bench = config.recipe.benchmark.chosen(facts.summary("benchmark"))
    if bench.chooses:
        return blocks
    flags = serving(config.target_ref, resolved, bench)
    ours = "eagle3 serve TARGET DRAFT --engine llamacpp"
    commands = "\n\n".join([ours, *(flags[engine]["command"] for engine in ("vllm", "sglang"))])
    return [*blocks, Heading("Serve it"), Code(commands)]


def _verdict(facts: Facts) -> str:
    bench, prove = facts.summary("benchmark"), facts.summary("prove")
    parts = []
    if prove:
        how = "is" if prove["verdict"] == "lossless" else "is NOT"
        parts.append(
            f"The output with the draft {how} the target's own, token for token: "
            f"{prove['tokens']} tokens of {prove['prompts']} held-out prompts against an "
            f"independent reference, {prove['mismatches']} differences, "
            f"{prove['near_ties']} near ties ({prove['dtype']})."
        )
    if tried := facts.summary("parity"):
        parts.append(tried["said"])
    if bench:
        low, high = bench["speedup_ci"]
        pace = {
            "faster": "Decoding with the draft is faster",
            "slower": "Decoding with the draft is SLOWER on this machine",
            "undecided": "Decoding with the draft is neither clearly faster nor slower",
            "measurement_error": "The speed could NOT be measured",
            "no_tokens": "There was nothing to measure",
        }[bench["verdict"]]
        parts.append(
            f"{pace}: {bench['speedup']:.2f}x (95% interval {low:.2f} to {high:.2f}) at an "
            f"acceptance length of {bench['tau']:.2f}, {bench['depth']} draft tokens a round."
        )
        if bench["verdict"] != "faster":
            parts.append(f"{facts.benchmark['why'].capitalize()}.")
    return " ".join(parts) or "The run has not been measured yet."


def _result(facts: Facts) -> list[Block]:
    bench = facts.summary("benchmark")
    if not bench:
        return []
    rows = [
        ("plain decoding", f"{bench['plain_tokens_per_s']:.1f} tokens/s"),
        ("with the draft", f"{bench['draft_tokens_per_s']:.1f} tokens/s"),
        ("speedup", _with_interval(bench["speedup"], bench["speedup_ci"])),
        ("acceptance length (tau)", _with_interval(bench["tau"], bench["tau_ci"])),
    ]
    rows += [
        (f"acceptance at position {n + 1}", f"{rate:.1%}")
        for n, rate in enumerate(bench["acceptance_by_position"])
    ]
    return [Heading("Result"), Table(("", ""), rows)]


def _cost_model(facts: Facts) -> list[Block]:
    model, bench = facts.benchmark.get("cost_model"), facts.summary("benchmark")
    if not model:
        return []
    target_ms = model["target_ms_by_rows"]
    one, verified = target_ms["1"], target_ms[str(model["verified_rows"])]
    steps, step = model["draft_steps"], model["draft_step_ms"]
    rows = [
        *((f"target forward of {n} row(s)", f"{ms:.1f} ms") for n, ms in target_ms.items()),
        ("one draft step", f"{step:.1f} ms"),
        ("speedup predicted from these and tau", f"{model['predicted_speedup']:.2f}x"),
        ("speedup measured", f"{bench['speedup']:.2f}x"),
        ("tau at which this machine breaks even", f"{(verified + steps * step) / one:.2f}"),
    ]
    return [
        Heading("Why this speed"),
        Text(
            f"Plain decoding pays one target forward of one row ({one:.1f} ms) for each token. A "
            f"round pays one forward of {model['verified_rows']} rows ({verified:.1f} ms) and "
            f"{steps} draft steps ({steps * step:.1f} ms), and yields {bench['tau']:.2f} tokens. "
            "Measured in the same run:"
        ),
        Table(("cost", "value"), rows),
    ]


def _trained(facts: Facts) -> list[Block]:
    recipe, train = facts.config.recipe, facts.summary("train")
    regenerate = facts.summary("regenerate")
    rows = [
        ("target", str(facts.target.get("resolved", facts.config.target))),
        ("weights SHA-256", str(facts.target.get("weights_sha256", ""))),
        ("recipe", f"{recipe.name}, seed {recipe.seed}"),
        ("prompts", facts.config.prompts.name),
    ]
    if regenerate:
        rows.append(
            (
                "answers written by the target",
                f"{regenerate['response_tokens']} tokens, {regenerate['train_samples']} for "
                f"training and {regenerate['heldout_samples']} held out, temperature "
                f"{regenerate['temperature']:g}",
            )
        )
    if train:
        rows += [
            ("training", f"{train['steps']} steps, {train['train_tokens']} token passes"),
            ("best checkpoint", f"step {train['best_step']}, by held-out acceptance length"),
            ("held-out acceptance length", f"{train['acceptance_length']:.2f} (simulated chains)"),
            ("draft vocabulary covers", f"{train['coverage']:.1%} of the target's probability"),
        ]
    export = facts.summary("export")
    if export:
        rows += [
            ("draft", f"{export['parameters'] / 1e6:.1f} M parameters, {export['dtype']}"),
            ("captured layers", f"{export['capture_layers']} ({export['convention']})"),
        ]
    return [Heading("What was trained on what"), Table(("", ""), rows)]


def _time(facts: Facts) -> list[Block]:
    price = facts.config.price_per_hour
    rows = []
    for stage in facts.manifests:
        seconds = facts.seconds(stage)
        rows.append((stage, _duration(seconds), _cost(seconds, price)))
    total = sum(facts.seconds(s) for s in facts.manifests)
    rows.append(("all", _duration(total), _cost(total, price)))
    machine = next(iter(facts.manifests.values()))["hardware"]
    where = ", ".join(machine.get("gpus", [])) or f"{machine['cores']} cores of {machine['cpu']}"
    note = f"On {where}."
    if price is None:
        note += " No price per hour is set, so cost is time alone."
    return [Heading("Time and cost"), Table(("stage", "time", "cost"), rows), Text(note)]


def _with_interval(value: float, interval: list[float]) -> str:
    return f"{value:.2f} (95% interval {interval[0]:.2f} to {interval[1]:.2f})"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _cost(seconds: float, price: float | None) -> str:
    return "–" if price is None else f"{seconds / 3600 * price:.3f}"
