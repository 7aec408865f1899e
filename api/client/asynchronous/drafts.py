"""Drafts: find, choose, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from api.client.asynchronous.jobs import Jobs
from api.client.plumbing import Arriving, given, matching, parsed, part
from api.schemas import DownloadUrl, DraftFile, DraftFiles, DraftPage, DraftView


class Drafts(Jobs):
    """The part of the client that is about drafts."""

    async def drafts(
        self,
        *,
        base_model: str | None = None,
        revision: str | None = None,
        name: str | None = None,
        alias: str | None = None,
        job_id: str | None = None,
        deprecated: bool | None = None,
        limit: int = 20,
        after: str = "",
    ) -> DraftPage:
        """Drafts, newest first."""
        params = given(
            base_model=base_model,
            revision=revision,
            name=name,
            alias=alias,
            job_id=job_id,
            deprecated=deprecated,
            limit=limit,
            after=after,
        )
        return await self._get(DraftPage, "/v1/drafts", **params)

    async def draft(self, ref: str) -> DraftView:
        """A draft by its id or its job's, or by name, with or without `@alias`."""
        draft, _ = await self.draft_with_etag(ref)
        return draft

    async def draft_with_etag(self, ref: str) -> tuple[DraftView, str]:
        """The same, and the ETag that `if_match` takes."""
        response = await self._send("GET", f"/v1/drafts/{part(ref)}")
        return parsed(DraftView, response), response.headers["etag"]

    async def promote(self, ref: str, *, if_match: str | None = None) -> DraftView:
        """Make a draft champion; the former one is `previous` from then on."""
        return await self._draft_action(ref, "promote", if_match)

    async def roll_back(self, ref: str, *, if_match: str | None = None) -> DraftView:
        """Make the previous champion champion again. Returns it."""
        return await self._draft_action(ref, "rollback", if_match)

    async def deprecate(self, ref: str, reason: str, *, if_match: str | None = None) -> DraftView:
        """Say that a draft should not be used."""
        return await self._draft_action(ref, "deprecate", if_match, json={"reason": reason})

    async def reinstate(self, ref: str, *, if_match: str | None = None) -> DraftView:
        """Take a deprecation back."""
        return await self._draft_action(ref, "reinstate", if_match)

    async def draft_files(self, ref: str) -> list[DraftFile]:
        """The files of a draft's bundle."""
        found = await self._get(DraftFiles, f"/v1/drafts/{part(ref)}/files")
        return found.data

    async def draft_file_url(self, ref: str, path: str) -> DownloadUrl:
        """A link to a file of a draft's bundle."""
        route = f"/v1/drafts/{part(ref)}/files/{quote(path)}/download-url"
        return self._absolute(await self._post(DownloadUrl, route))

    async def download(self, ref: str, file: DraftFile, destination: Path) -> None:
        """Write one file of a draft; nothing is left at `destination` unless its hash is right.

        Raises:
            ClientError: the bytes that came are not the ones the draft's manifest names.
        """
        path = f"/v1/drafts/{part(ref)}/files/{quote(file.path)}"
        arriving = Arriving(file, destination)
        try:
            async with self._streamed(path) as response:
                async for chunk in response.aiter_bytes(1 << 20):
                    arriving.write(chunk)
            arriving.arrived()
        finally:
            arriving.drop()

    async def _draft_action(
        self, ref: str, action: str, if_match: str | None, **options: Any
    ) -> DraftView:
        path = f"/v1/drafts/{part(ref)}/{action}"
        return await self._post(DraftView, path, headers=matching(if_match), **options)
