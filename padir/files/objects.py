"""Objects in buckets of Google Cloud Storage: the requests, what is tried again, and what a failure is called.

gcsfs signs the requests, and tries those again that a busy or failing server refused (408, 429, 500 to 504) or whose
connection broke: six times, waiting 1, 2, 4, 8 and 16 seconds and up to a second more by chance. Import this module
only where an address begins with gs://, because it imports gcsfs.

An upload is atomic: readers see the former object, or none, until the new one is whole. The generation of an object is
the number of its version; a request can depend on it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from padir.errors import PadirError, StorageError
from padir.files import refusals

# gcsfs would otherwise look for buckets with hierarchical namespaces through a second client.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

import aiohttp
import gcsfs
import google.auth.exceptions
from gcsfs.retry import RETRIABLE_EXCEPTIONS

# It prints the tracebacks of what is raised anyway.
logging.getLogger("gcsfs").setLevel(logging.CRITICAL)

SCHEME = "gs://"

# Larger files are sent in several requests, so that a broken connection costs one part.
_ONE_REQUEST_BYTES = 1 << 23
_PART_BYTES = 1 << 25

_PASSING_CODES = {408, 429, *range(500, 600)}
_PASSING_ERRORS = (*RETRIABLE_EXCEPTIONS, TimeoutError)

# A condition of an upload: that there is no such object yet.
ABSENT = 0


@dataclass(frozen=True)
class Description:
    """What a bucket knows of an object.

    Attributes:
      uri: its address.
      size: its bytes.
      generation: the number of its version.
      md5: the MD5 of its content in base64; None of an object that was composed of others.
      modified: when it was written, in seconds since 1970.
    """

    uri: str
    size: int
    generation: int
    md5: str | None
    modified: float


@functools.cache
def _files(process: int) -> gcsfs.GCSFileSystem:
    # By process, because connections do not survive a fork.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
    return gcsfs.GCSFileSystem(
        use_listings_cache=False, skip_instance_cache=True, requests_timeout=timeout, consistency="md5"
    )


def _client() -> gcsfs.GCSFileSystem:
    return _files(os.getpid())


def split(uri: str) -> tuple[str, str]:
    """Returns the bucket and the name within it.

    Raises:
      PadirError: the address names no bucket.
    """
    bucket, _, name = uri.removeprefix(SCHEME).partition("/")
    if not bucket:
        raise PadirError(f"{uri}: names no bucket; an address has the form gs://BUCKET/PATH")
    return bucket, name


@contextlib.contextmanager
def _named(uri: str) -> Iterator[None]:
    """Turns the errors of a request into those of this project; a missing object stays a FileNotFoundError."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(2, "No such object", uri) from error
    except FileExistsError as error:
        raise FileExistsError(17, "Object has changed meanwhile", uri) from error
    except Exception as error:
        raise explained(uri, error) from error


def explained(uri: object, error: Exception) -> PadirError:
    """Returns what a failed request is called: what was asked for, the reason, and what to do about it.

    A StorageError may pass by itself; any other PadirError needs the user.
    """
    code = getattr(error, "code", None)
    code = int(code) if str(code).isdigit() else None
    said = " ".join(str(error).split())[:300]
    if isinstance(error, PadirError):
        return type(error)(f"{uri}: {said}")
    if isinstance(error, google.auth.exceptions.TransportError) or getattr(error, "retryable", False):
        return StorageError(f"{uri}: the service that gives this machine its credentials did not answer ({said})")
    if type(error).__module__.startswith("google.auth.") or code == 401:
        return refusals.no_credentials(uri, said)
    if code == 403 or (isinstance(error, OSError) and said.startswith("Forbidden")):
        return refusals.no_permission(uri, said)
    if code in _PASSING_CODES or isinstance(error, _PASSING_ERRORS):
        return refusals.no_answer(uri, said or type(error).__name__)
    return PadirError(f"{uri}: the storage refused this request ({said or type(error).__name__})")


@functools.cache
def check_bucket(bucket: str) -> None:
    """Checks once in a process that a bucket exists and that this account may use it.

    Raises:
      PadirError: the bucket does not exist, or there are no credentials or permission.
      StorageError: it cannot be reached.
    """
    try:
        with _named(f"{SCHEME}{bucket}"):
            _client().call("GET", "b/{}/o", bucket, maxResults=1, prefix="padir", json_out=True)
    except FileNotFoundError:
        raise PadirError(
            f"{SCHEME}{bucket}: no such bucket; create it with `gcloud storage buckets create {SCHEME}{bucket}`, or "
            "correct the address"
        ) from None


def _checked(uri: str) -> tuple[str, str]:
    bucket, name = split(uri)
    check_bucket(bucket)
    return bucket, name


def _described(bucket: str, found: dict[str, Any]) -> Description:
    modified = datetime.datetime.fromisoformat(found["updated"]).timestamp() if "updated" in found else 0.0
    return Description(
        f"{SCHEME}{bucket}/{found['name']}",
        int(found.get("size", 0)),
        int(found["generation"]),
        found.get("md5Hash"),
        modified,
    )


def describe(uri: str) -> Description:
    """Describes an object; raises FileNotFoundError if there is none."""
    bucket, name = _checked(uri)
    if not name:
        raise FileNotFoundError(2, "Names a bucket, no object", uri)
    with _named(uri):
        return _described(bucket, _client().call("GET", "b/{}/o/{}", bucket, name, json_out=True))


def listed(uri: str, *, below: bool = False, most: int | None = None) -> tuple[list[Description], list[str]]:
    """Lists a folder.

    Args:
      uri: the folder.
      below: whether to list all objects below it; otherwise folders in it are named and not entered.
      most: stop after this many entries.

    Returns:
      The objects, and the addresses of the folders, both in the order of their names.
    """
    bucket, name = _checked(uri)
    prefix = f"{name.rstrip('/')}/" if name else None
    wanted = {"prefix": prefix, "delimiter": None if below else "/", "maxResults": most}
    objects, folders, page = [], [], None
    while True:
        with _named(uri):
            found = _client().call("GET", "b/{}/o", bucket, json_out=True, pageToken=page, **wanted)
        # An object whose name ends in '/' is a folder that a console made.
        objects += [_described(bucket, item) for item in found.get("items", []) if not item["name"].endswith("/")]
        folders += [f"{SCHEME}{bucket}/{folder.rstrip('/')}" for folder in found.get("prefixes", [])]
        page = found.get("nextPageToken")
        if page is None or (most is not None and len(objects) + len(folders) >= most):
            return objects, folders


def read(uri: str, begin: int = 0, end: int | None = None, *, generation: int | None = None) -> bytes:
    """Reads a range of the bytes of an object.

    Args:
      uri: the object.
      begin, end: the range; None reads to the end. It must not be empty, nor begin beyond the object's end.
      generation: the version to read.

    Raises:
      FileNotFoundError: there is no such object, or not in this version any more.
      PadirError, StorageError: the request failed.
    """
    _checked(uri)
    headers = {} if not begin and end is None else {"Range": f"bytes={begin}-{'' if end is None else end - 1}"}
    with _named(uri):
        _, content = _client().call("GET", _client().url(uri, generation=generation), headers=headers)
    if end is not None and len(content) != end - begin:
        raise StorageError(f"{uri}: {len(content)} bytes arrived of {end - begin}")
    return content


def write(uri: str, content: bytes, *, generation: int | None = None) -> int:
    """Writes an object whole.

    Args:
      uri: the object.
      content: its bytes.
      generation: write it only if this is the version there; `ABSENT` if there must be none; None in any case.

    Returns:
      The generation of what was written.

    Raises:
      FileExistsError: another version is there.
      PadirError, StorageError: the request failed.
    """
    bucket, name = _checked(uri)
    with _named(uri):
        answer = _client().call(
            "POST",
            _client().base.replace("/storage/v1/", "/upload/storage/v1/") + "b/{}/o",
            bucket,
            uploadType="media",
            name=name,
            ifGenerationMatch=generation,
            headers={"Content-Type": "application/octet-stream"},
            data=content,
            json_out=True,
        )
    _check_arrived(uri, answer.get("md5Hash"), hashlib.md5(content, usedforsecurity=False))
    return int(answer["generation"])


def _check_arrived(uri: str, found: str | None, expected: Any) -> None:
    if found is not None and base64.b64decode(found) != expected.digest():
        remove(uri, missing_ok=True)
        raise StorageError(f"{uri}: what arrived differs from what was sent; it is removed")


def write_file(uri: str, path: str | os.PathLike) -> None:
    """Writes a local file of any size as an object; it appears when all of it has arrived."""
    if os.path.getsize(path) <= _ONE_REQUEST_BYTES:
        with open(path, "rb") as file:
            write(uri, file.read())
        return
    _checked(uri)
    with _named(uri):
        _client().put_file(os.fspath(path), uri, chunksize=_PART_BYTES, content_type="application/octet-stream")


def remove(uri: str, *, missing_ok: bool = False, generation: int | None = None) -> None:
    """Removes an object, only of one generation if given.

    Raises:
      FileNotFoundError: there is none, unless `missing_ok`.
      FileExistsError: another version is there.
    """
    bucket, name = _checked(uri)
    with contextlib.suppress(*[FileNotFoundError] * missing_ok), _named(uri):
        _client().call("DELETE", "b/{}/o/{}", bucket, name, ifGenerationMatch=generation)


def copy(source: str, target: str) -> None:
    """Copies an object within the storage, without reading it here."""
    (bucket, name), (to_bucket, to_name) = _checked(source), _checked(target)
    token = None
    while True:
        with _named(source):
            answer = _client().call(
                "POST",
                "b/{}/o/{}/rewriteTo/b/{}/o/{}",
                bucket,
                name,
                to_bucket,
                to_name,
                rewriteToken=token,
                headers={"Content-Type": "application/json"},
                json_out=True,
            )
        if answer.get("done"):
            return
        token = answer["rewriteToken"]
