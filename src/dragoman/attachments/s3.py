"""Attachments in an S3-compatible bucket: ``s3://bucket/prefix?endpoint=…&region=…``.

Credentials come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, a role), never from the URL.
With ``direct=true`` clients read from the bucket, under a URL that S3 signs. Invariant: a file is written with the type
and the disposition with which our server would send it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from dragoman.attachments.paths import not_found_error, validate_bucket
from dragoman.attachments.types import Chunks
from dragoman.errors import StorageError
from dragoman.s3_bucket import open_bucket

if TYPE_CHECKING:
    from obstore import GetResult

_STORED_HEADERS: Final = ("Content-Type", "Content-Disposition", "Cache-Control")


class S3Storage:
    """A bucket."""

    def __init__(self, url: str) -> None:
        bucket = open_bucket(url, extra_options=("direct",))
        self.bucket = validate_bucket(bucket.name)
        self._obstore, self._faults, self._not_found = bucket.obstore, bucket.errors, bucket.missing_errors
        self._prefix = f"{bucket.path.strip('/')}/".lstrip("/")
        self._is_direct = bucket.options.get("direct") == "true"
        self._bucket_store = bucket.store

    async def write(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        attributes = {name: headers[name] for name in _STORED_HEADERS if name in headers}
        try:
            await self._obstore.put_async(
                self._bucket_store, self._prefix + path, data, attributes=attributes, use_multipart=False
            )
        except self._faults as error:
            raise self._storage_error(error) from error

    async def size(self, path: str) -> int:
        try:
            return int((await self._obstore.head_async(self._bucket_store, self._prefix + path))["size"])
        except self._not_found:
            raise not_found_error() from None
        except self._faults as error:
            raise self._storage_error(error) from error

    async def stream(self, path: str) -> tuple[int, Chunks]:
        try:
            answer = await self._obstore.get_async(self._bucket_store, self._prefix + path)
        except self._not_found:
            raise not_found_error() from None
        except self._faults as error:
            raise self._storage_error(error) from error
        return int(answer.meta["size"]), Chunks(self._chunks(answer))

    async def delete(self, path: str) -> bool:
        try:
            await self._obstore.head_async(
                self._bucket_store, self._prefix + path
            )  # deletion does not report a missing file
            await self._obstore.delete_async(self._bucket_store, self._prefix + path)
        except self._not_found:
            return False
        except self._faults as error:
            raise self._storage_error(error) from error
        return True

    async def delete_under(self, prefix: str) -> int:
        deleted = 0
        try:
            async for page in self._obstore.list(self._bucket_store, self._prefix + prefix.rstrip("/")):
                paths = [str(item["path"]) for item in page]
                await self._obstore.delete_async(self._bucket_store, paths)
                deleted += len(paths)
        except self._faults as error:
            raise self._storage_error(error) from error
        return deleted

    async def direct_url(self, path: str, ttl_s: int) -> str | None:
        if not self._is_direct:
            return None
        try:
            url: str = await self._obstore.sign_async(
                self._bucket_store, "GET", self._prefix + path, timedelta(seconds=ttl_s)
            )
        except self._faults as error:
            raise self._storage_error(error) from error
        return url

    async def close(self) -> None:
        """Nothing to close."""

    async def _chunks(self, answer: GetResult) -> AsyncGenerator[bytes]:
        try:
            async for chunk in answer.stream():
                yield bytes(chunk)
        except self._faults as error:
            raise self._storage_error(error) from error

    def _storage_error(self, error: Exception) -> StorageError:
        first = str(error).partition("\n")[0]
        return StorageError(
            f"the bucket cannot be reached ({type(error).__name__}: {first})", where=f"s3://{self.bucket}"
        )
