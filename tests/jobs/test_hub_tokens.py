"""Hub tokens at rest: which one counts, and what opens it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session

from jobs.db import Database
from jobs.errors import Conflict, Invalid
from jobs.hub_tokens import forget_hub_token, hub_token_of, set_hub_token
from jobs.keys import create_key, revoke_key, rotate_key
from jobs.models import ApiKey
from tests.jobs.conftest import Clock

PEPPER, ANOTHER = SecretStr("p" * 32), SecretStr("q" * 32)
TOKEN = "hf_abcdefgh12345678"


def add(db: Database, clock: Clock, token: str | None = TOKEN) -> str:
    with db.write() as session:
        row, _ = create_key(session, "k", ["jobs:write"], pepper=PEPPER, now=clock.now)
        if token is not None:
            put(session, row, clock, token)
        return row.id


def put(session: Session, row: ApiKey, clock: Clock, token: str) -> None:
    set_hub_token(session, row, SecretStr(token), pepper=PEPPER, now=clock.now)


def rotated(db: Database, clock: Clock, key_id: str) -> str:
    with db.write() as session:
        hour = timedelta(hours=1)
        return rotate_key(session, key_id, pepper=PEPPER, now=clock.now, overlap=hour)[0].id


def token_of(db: Database, owner: str, clock: Clock, pepper: SecretStr = PEPPER) -> str | None:
    with db.read() as session:
        found = hub_token_of(session, owner, pepper=pepper, now=clock.now)
    return None if found is None else found.get_secret_value()


def test_ciphertext_is_stored_and_opened(db: Database, clock: Clock) -> None:
    key_id = add(db, clock)
    with db.read() as session:
        stored = session.get_one(ApiKey, key_id).hub_token
    assert stored is not None
    assert TOKEN not in stored
    assert token_of(db, key_id, clock) == TOKEN
    assert token_of(db, add(db, clock, None), clock) is None


def test_another_pepper_opens_none_and_says_what_to_do(db: Database, clock: Clock) -> None:
    key_id = add(db, clock)
    with pytest.raises(Invalid, match=f"PUT /v1/api-keys/{key_id}/hub-token again"):
        token_of(db, key_id, clock, ANOTHER)


def test_another_owners_row_opens_none(db: Database, clock: Clock) -> None:
    key_id, thief = add(db, clock), add(db, clock, None)
    with db.write() as session:
        row = session.get_one(ApiKey, thief)
        row.hub_token, row.hub_token_at = session.get_one(ApiKey, key_id).hub_token, clock.now
    with pytest.raises(Invalid):
        token_of(db, thief, clock)


def test_it_goes_over_when_the_key_is_rotated_and_ends_with_its_key(
    db: Database, clock: Clock
) -> None:
    key_id = add(db, clock)
    made = rotated(db, clock, key_id)
    with db.write() as session:
        revoke_key(session, key_id, now=clock.now)
    assert token_of(db, key_id, clock) == TOKEN, "by the key that took its place"
    with db.write() as session:
        revoke_key(session, made, now=clock.now)
        assert session.get_one(ApiKey, made).hub_token is None, "nobody can use it any more"
    assert token_of(db, key_id, clock) is None


@pytest.mark.parametrize("first", [True, False])
def test_an_owner_has_one_and_what_is_forgotten_is_forgotten(
    db: Database, clock: Clock, first: bool
) -> None:
    """While two keys of the owner are in use, whichever of them it is set with."""
    former = add(db, clock)
    keys = (former, rotated(db, clock, former))
    with db.write() as session:
        put(session, session.get_one(ApiKey, keys[not first]), clock, TOKEN[::-1])
    assert token_of(db, former, clock) == TOKEN[::-1]
    with db.write() as session:
        forget_hub_token(session, former)
    assert token_of(db, former, clock) is None


def test_a_key_of_no_use_takes_none(db: Database, clock: Clock) -> None:
    """It would never be used, and who has set it would not know."""
    revoked, expired = add(db, clock), add(db, clock)
    with db.write() as session:
        revoke_key(session, revoked, now=clock.now)
    rotated(db, clock, expired)
    clock.forward(3600)
    for key_id in (revoked, expired):
        with pytest.raises(Conflict, match="in use"), db.write() as session:
            put(session, session.get_one(ApiKey, key_id), clock, TOKEN)
