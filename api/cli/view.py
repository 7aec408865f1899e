"""Jobs, stages, drafts and events as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from api.schemas import DraftView, EventView, JobView, StageProgress, StageView

MARKS = {
    "succeeded": ("✔", "green"),
    "running": ("●", "cyan"),
    "failed": ("✘", "red"),
    "cancelled": ("■", "yellow"),
    "cancelling": ("■", "yellow"),
}
LEVELS = {"warning": "yellow", "warn": "yellow", "error": "red"}
ALIASES = {"champion": "bold green"}


def duration(seconds: float) -> str:
    """`7s`, `4m 12s`, `1h 03m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def number(value: float) -> str:
    """A count with separators, or a measure with three figures that matter."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def elapsed(started: datetime | None, finished: datetime | None, now: datetime) -> str:
    return duration(max(0.0, ((finished or now) - started).total_seconds())) if started else ""


def age(at: datetime, now: datetime) -> str:
    """How long ago, in its largest unit: `7s`, `4m`, `3h`, `12d`."""
    seconds = max(0, int((now - at).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def mark(status: str) -> Text:
    symbol, style = MARKS.get(status, ("○", "dim"))
    return Text(symbol, style)


def status_text(status: str) -> Text:
    return Text(status, MARKS.get(status, ("", ""))[1])


def measures(progress: StageProgress) -> str:
    """Step, loss and acceptance, as far as they are known."""
    values = progress.metrics
    parts = [f"step {progress.step:,}"] if progress.step is not None and values else []
    if "train/loss" in values:
        parts.append(f"loss {values['train/loss']:.3f}")
    if "eval/acceptance_length" in values:
        parts.append(f"acceptance length {values['eval/acceptance_length']:.2f}")
    by_step = [v for k, v in sorted(values.items()) if k.startswith("train/acc_step_")]
    if by_step:
        parts.append("accuracy " + " ".join(f"{v:.2f}" for v in by_step))
    return " · ".join(parts)


def pace(progress: StageProgress) -> str:
    """`120/194 step · 0.8/s · ETA 1m 32s`."""
    if not progress.total:
        return ""
    parts = [f"{number(progress.done)}/{number(progress.total)} {progress.unit}".strip()]
    if progress.rate:
        parts.append(f"{number(progress.rate)}/s")
    if progress.eta_s is not None:
        parts.append(f"ETA {duration(progress.eta_s)}")
    return " · ".join(parts)


def headline(stage: StageView) -> str:
    """What a finished stage has to show, in one phrase."""
    s = stage.summary or {}
    match stage.name:
        case "resolve":
            return _join(s.get("resolved"), _count(s, "num_layers", "layers"))
        case "prepare":
            left_out = _count(s, "too_long", "too long") if s.get("too_long") else ""
            return _join(_count(s, "train", "prompts"), _count(s, "heldout", "held out"), left_out)
        case "regenerate":
            return _join(_count(s, "response_tokens", "tokens"), _count(s, "tokens_per_s", "tok/s"))
        case "extract":
            return _join(_count(s, "tokens", "tokens"), _size(s.get("bytes")))
        case "train":
            return _join(
                _count(s, "steps", "steps"), _figure(s, "acceptance_length", "acceptance length")
            )
        case "export":
            return _join(_count(s, "parameters", "parameters"))
        case "parity":
            engines = s.get("engines", {}).items()
            return _join(*(f"{name} {one['broken'] or 'agrees'}" for name, one in engines))
        case "benchmark":
            return _join(_speedup(s), _figure(s, "tau", "tau"))
        case "prove":
            return _join(_verdict(s.get("verdict")), _count(s, "tokens", "tokens compared"))
        case _:
            return _join(s.get("draft_id"), s.get("alias"))


def job_panel(job: JobView, now: datetime, width: int) -> Table:
    """The live view: a line a stage, the running one with bar, pace and measures."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(width=10, no_wrap=True)
    table.add_column(ratio=1, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True, min_width=6)
    table.width = min(width, 100)
    for stage in job.stages:
        table.add_row(
            mark(stage.status),
            Text(stage.name, "bold" if stage.status == "running" else ""),
            _stage_detail(stage, table.width - 24),
            Text(elapsed(stage.started_at, stage.finished_at, now), "dim"),
        )
    return table


def job_heading(job: JobView, now: datetime) -> Text:
    """`● job_…  demo · quick · running  4m 12s`."""
    return Text.assemble(
        mark(job.status),
        " ",
        (job.id, "bold"),
        f"  {job.target} · {job.recipe} · ",
        status_text(job.status),
        (f"  {elapsed(job.started_at or job.created_at, job.finished_at, now)}", "dim"),
    )


def stage_line(stage: StageView) -> str:
    """The running stage on one plain line."""
    if stage.progress is None:
        return f"{stage.name}: {stage.status}"
    percent = _percent(stage.progress)
    parts = [pace(stage.progress) + percent, measures(stage.progress), stage.progress.message]
    return f"{stage.name}: " + " · ".join(p for p in parts if p)


def jobs_table(jobs: list[JobView], width: int) -> Table:
    now = datetime.now(UTC)
    table = _table(width, "job", "target", "recipe", "status", "took", "age")
    for job in jobs:
        stage = next((f" {s.name}" for s in job.stages if s.status == "running"), "")
        table.add_row(
            job.id,
            Text(job.target),
            job.recipe,
            status_text(job.status).append(stage, "dim"),
            elapsed(job.started_at, job.finished_at, now),
            age(job.created_at, now),
        )
    return table


def drafts_table(drafts: list[DraftView], width: int) -> Table:
    now = datetime.now(UTC)
    table = _table(width, "draft", "target", "alias", "tau", "speedup", "lossless", "age")
    for draft in drafts:
        m = draft.metrics
        table.add_row(
            draft.id,
            Text(draft.target_resolved),
            Text(draft.alias, ALIASES.get(draft.alias, "")),
            _plain(m, "tau", "acceptance_length"),
            _plain(m, "speedup"),
            _yes_no(m.get("lossless")),
            age(draft.created_at, now),
        )
    return table


def event_text(event: EventView) -> Text:
    """`12:03:10 train  loss is falling`, in local time."""
    clock = event.created_at.astimezone().strftime("%H:%M:%S")
    return Text.assemble((clock, "dim"), " ", (event.message, LEVELS.get(event.level, "")))


def _table(width: int, *columns: str) -> Table:
    """A plain table whose second column, a target, gives way when the terminal is narrow."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1))
    table.width = min(width, 120)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=True, ratio=1 if i == 1 else None, overflow="ellipsis")
    return table


def _stage_detail(stage: StageView, width: int) -> Table | Text:
    if stage.error:
        return Text(str(stage.error.get("message", "")), "red")
    if stage.status == "succeeded":
        return Text(headline(stage), "dim")
    again = f"attempt {stage.attempt}" if stage.attempt > 1 else ""
    if stage.status != "running" or stage.progress is None:
        return Text(again, "yellow")
    progress = stage.progress
    lines = Table.grid()
    bar = Table.grid(padding=(0, 1))
    share = min(1.0, progress.done / progress.total) if progress.total else 0.0
    bar.add_row(
        ProgressBar(total=1.0, completed=share, width=max(8, min(24, width - 40))),
        Text(pace(progress), no_wrap=True),
    )
    lines.add_row(bar)
    if line := _join(measures(progress) or progress.message, again):
        lines.add_row(Text(line, "cyan", overflow="ellipsis", no_wrap=True))
    return lines


def _percent(progress: StageProgress) -> str:
    return f" ({100 * progress.done / progress.total:.0f}%)" if progress.total else ""


def _join(*parts: Any) -> str:
    return " · ".join(str(p) for p in parts if p)


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {k: v for k, v in values.items() if isinstance(v, int | float) and v is not True}


def _count(values: dict[str, Any], key: str, unit: str) -> str:
    return f"{number(values[key])} {unit}" if key in _numbers(values) else ""


def _figure(values: dict[str, Any], key: str, name: str) -> str:
    return f"{name} {values[key]:.2f}" if key in _numbers(values) else ""


def _plain(values: dict[str, Any], *keys: str) -> str:
    return next((f"{values[k]:.2f}" for k in keys if k in _numbers(values)), "")


def _yes_no(value: Any) -> str:
    return "" if value is None else "yes" if value else "no"


def _speedup(values: dict[str, Any]) -> str:
    return f"{values['speedup']:.2f}x plain decoding" if "speedup" in _numbers(values) else ""


def _verdict(verdict: Any) -> str:
    return {"lossless": "lossless", "not_lossless": "NOT lossless"}.get(str(verdict), "")


def _size(count: Any) -> str:
    if not isinstance(count, int | float):
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
