"""What the client raises.

ClientError
├── ServiceUnreachable   no answer: not running, wrong URL, or a network failure
└── ApiError             an answer that is not a success; `problem` holds its details
"""

from __future__ import annotations

from api.schemas import Problem


class ClientError(Exception):
    """Base of what the client raises."""


class ServiceUnreachable(ClientError):
    """Nothing answered at the URL."""


class ApiError(ClientError):
    """The service answered with a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        lines = [problem.detail or problem.title]
        lines += [f"{e.pointer}: {e.detail}" for e in problem.errors]
        super().__init__("\n".join(lines))

    @property
    def status(self) -> int:
        return self.problem.status
