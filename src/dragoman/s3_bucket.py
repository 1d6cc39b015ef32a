"""Buckets of S3-compatible services, opened from a URL: ``s3://bucket/prefix?endpoint=https://…&region=…``.

Credentials come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, a role), never from the URL,
which is shown and logged. The package obstore is in the extra "s3".
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from dragoman.errors import StoreUnusableError

if TYPE_CHECKING:
    from obstore.store import S3Store

_OPTIONS: Final = ("endpoint", "region", "path_style")


class S3Bucket(NamedTuple):
    """An open bucket, the options of its URL, and the package that reads and writes it."""

    name: str
    path: str
    options: dict[str, str]
    store: S3Store
    obstore: Any
    errors: type[Exception]
    missing_errors: tuple[type[Exception], ...]


def open_bucket(url: str, *, extra_options: tuple[str, ...] = ()) -> S3Bucket:
    """Open the bucket of a URL. Nothing is requested yet."""
    try:
        import obstore  # noqa: PLC0415  an extra
        from obstore.exceptions import BaseError, NotFoundError  # noqa: PLC0415
    except ImportError:
        raise StoreUnusableError(
            "S3 needs the package obstore", remedy="Run pip install 'dragoman[s3]'", code="missing_extra"
        ) from None
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not parts.hostname or parts.username or set(options) - {*_OPTIONS, *extra_options}:
        raise StoreUnusableError(
            "not the URL of a bucket",
            remedy="Use s3://bucket/prefix?endpoint=https://…&region=…, with credentials in the environment",
            code="not_a_store",
        )
    missing_errors = (FileNotFoundError, NotFoundError)
    return S3Bucket(
        parts.netloc, parts.path, options, _open_store(parts.netloc, options), obstore, BaseError, missing_errors
    )


def _open_store(bucket: str, options: dict[str, str]) -> S3Store:
    from obstore.store import S3Store  # noqa: PLC0415  an extra

    endpoint = options.get("endpoint")
    config: dict[str, Any] = {"virtual_hosted_style_request": options.get("path_style", "true") == "false"}
    if endpoint is not None:
        config["endpoint"] = endpoint
    config["region"] = options.get("region", "us-east-1")
    return S3Store(
        bucket,
        **config,
        client_options={
            "allow_http": (endpoint or "").startswith("http://"),
            "connect_timeout": "5 seconds",
            "timeout": "60 seconds",
        },
        retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=30)},
    )
