"""From an attachment's rows to what the API says of it."""

from __future__ import annotations

from sqlalchemy.orm import Session

from api.schemas import AttachmentView, GateCheck, JobError
from api.views import draft_view
from jobs.attach_summary import summary_markdown
from jobs.attachments import checks_of, decision_of, get_attachment, outcome
from jobs.models import Draft
from jobs.store import ObjectStore


def attachment_view(session: Session, ref: str, store: ObjectStore) -> AttachmentView:
    """All that is known of one, its page included."""
    attachment, job = get_attachment(session, ref)
    decision = decision_of(session, job.id)
    status, checks = outcome(job, decision), checks_of(job, decision)
    draft_id = (job.result or {}).get("draft_id")
    draft = session.get(Draft, draft_id) if draft_id else None
    page = summary_markdown(attachment, job, decision, checks, draft, status)
    return AttachmentView(
        id=attachment.id,
        status=status,
        job_id=job.id,
        job_status=job.status.value,
        target=job.target,
        policy={name: value for name, value in job.spec.items() if name != "target"},
        fingerprint=attachment.fingerprint,
        decision=None if decision is None else decision.model_dump(mode="json"),
        checks=[GateCheck.model_validate(check) for check in checks],
        draft=None if draft is None else draft_view(session, draft, store),
        error=None if job.error is None else JobError.model_validate(job.error),
        summary=page,
        created_at=attachment.created_at,
        decided_at=attachment.decided_at,
        finished_at=job.finished_at,
    )
