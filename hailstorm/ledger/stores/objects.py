"""The store in an object store: S3 and whatever speaks like it, Google Cloud Storage, Azure, through obstore.

Who we are comes from the environment or from the machine (AWS_ACCESS_KEY_ID, an instance's role, ...): never from an
address, and so never from a ledger, a message or a log. Nor is the text of a server's answer shown: some quote keys.

Requests that fail in passing (503, timeouts, cut connections) are sent again with growing waits, for minutes: a store
that is gone for a moment stops nobody. An answer that breaks off half way is asked for once more here, because obstore
sends a request again only while there is no answer. Creating a file is done without obstore's own retries. A first try
that got no answer may have worked, and the second one would find the file and call it another's: only who knows that
there was a first try can look whose it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from hailstorm.errors import LedgerError, UsageError
from hailstorm.ledger.stores.store import StoredFile, outside

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Bucket

SECONDS = 180.0  # how long a request is tried before it is an error
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 10.0
_SILENT = 20.0  # seconds after which a server that says nothing is asked again
_AT_ONCE = 32  # requests
_WORTH_LISTING = 32  # files of one folder
_AT_LEAST = 1 << 18  # bytes that a request for a part brings: neighbours are wanted next
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"\b(?:status|error)\D{0,20}([45]\d\d)\b", re.I)

_NO_SUCH_PARTS = "InvalidBlockList"  # how Azure says what is 404 elsewhere
_BROKEN_OFF = "response body"  # in what obstore says of an answer that it could not read to its end

_METADATA = "169.254.169.254"  # where a machine of a cloud asks for its role

T = TypeVar("T")


class ObjectStore:
    """`bucket` and `once` are the same place; the second one sends every request once."""

    def __init__(self, address: str, bucket: Bucket, once: Bucket) -> None:
        self._address, self._bucket, self._once = address, bucket, once

    @staticmethod
    def at(address: str) -> ObjectStore:
        """The store at an address. Nothing is asked of it yet."""
        obstore = _obstore()
        http = any(value.startswith("http://") for value in _endpoints())
        options = {
            "timeout": timedelta(seconds=60),
            "connect_timeout": timedelta(seconds=10),
            "read_timeout": timedelta(seconds=_SILENT),
            "allow_http": http,
        }
        waits = {"init_backoff": timedelta(seconds=_FIRST_WAIT), "max_backoff": timedelta(seconds=_LONGEST_WAIT)}
        patient = {"max_retries": 100, "retry_timeout": timedelta(seconds=SECONDS), "backoff": {**waits, "base": 2}}
        never = {"max_retries": 0, "retry_timeout": timedelta(seconds=SECONDS), "backoff": {**waits, "base": 2}}
        try:
            bucket, once = (
                obstore.store.from_url(address, client_options=options, retry_config=retries)
                for retries in (patient, never)
            )
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise LedgerError(
                36,
                f"the object store of '{address}' cannot be used: {_said(error)}",
                hint="Where it is and who you are comes from the environment. For S3: AWS_REGION, AWS_ACCESS_KEY_ID,\n"
                "AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for other servers. See docs/how-to/object-stores.md",
            ) from None
        return ObjectStore(address, bucket, once)

    @property
    def address(self) -> str:
        return self._address

    def put_if_absent(self, name: str, data: bytes, unsynced: Sequence[str] = ()) -> bool:
        """A try without an answer may have worked: then what is there is compared with what we have sent."""
        obstore, name = _obstore(), _inside(name)
        began, wait, unanswered = time.monotonic(), _FIRST_WAIT, False
        while True:
            try:
                obstore.put(self._once, name, data, mode="create", use_multipart=False)
                return True
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return unanswered and self.get(name) == data
            except (obstore.exceptions.BaseError, FileNotFoundError) as error:
                may_pass = isinstance(error, obstore.exceptions.GenericError) and _may_pass(error)
                if not may_pass or time.monotonic() - began > SECONDS:
                    raise self._as_os_error(error) from None
                unanswered = True
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)

    def put(self, name: str, data: bytes) -> None:
        self._sent(name, data, len(data))

    def write(self, name: str, fill: Callable[[pa.NativeFile], object], synced: bool = True) -> int:
        sink = pa.BufferOutputStream()
        fill(sink)
        whole = sink.getvalue()
        self._sent(name, _obstore().Bytes(memoryview(whole).cast("B")), whole.size)
        return int(whole.size)

    def _sent(self, name: str, data: Any, size: int) -> None:
        """Large files go in parts, side by side, and a last request makes a file of them."""
        try:
            self._done(lambda: _obstore().put(self._bucket, _inside(name), data))
        except FileNotFoundError:
            # The parts are gone because they are the file by now: the answer to the last request was lost, and obstore
            # has sent it again.
            if self.size(name) != size:
                raise

    def get(self, name: str) -> bytes | None:
        try:
            return self._done(lambda: bytes(_obstore().get(self._bucket, _inside(name)).bytes()))
        except FileNotFoundError:
            return None

    def open(self, name: str, whole: bool = False) -> pa.NativeFile:
        if whole:
            return pa.BufferReader(self._done(lambda: _obstore().get(self._bucket, _inside(name)).bytes()))
        return pa.PythonFile(_Parts(self, name), mode="r")

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        try:
            return int(self._done(lambda: _obstore().head(self._bucket, _inside(name)))["size"])
        except FileNotFoundError:
            return None

    def identity(self, name: str) -> object:
        return name  # only erasures replace files of a commit, and of those `Ledger.copies` tells

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Of a folder with many of them by listing: a request for a thousand. The others at the same time."""
        folders: dict[str, list[str]] = {}
        for name in names:
            folders.setdefault(name.rpartition("/")[0], []).append(name)
        listed = {folder: some for folder, some in folders.items() if len(some) >= _WORTH_LISTING}
        single = [name for folder, some in folders.items() if folder not in listed for name in some]
        found: dict[str, int | None] = dict.fromkeys(names)
        for folder, some in listed.items():
            found |= self._listed_sizes(folder, set(some))
        if len(single) == 1:
            found[single[0]] = self.size(single[0])
        elif single:
            with ThreadPoolExecutor(min(_AT_ONCE, len(single)), thread_name_prefix="look") as pool:
                found |= zip(single, pool.map(self.size, single), strict=True)
        return found

    def _listed_sizes(self, folder: str, wanted: set[str]) -> dict[str, int | None]:
        last, before = max(wanted), min(wanted)[:-1]  # a listing begins after the name that it is given
        found: dict[str, int | None] = {}
        for page in self._pages(folder, before):
            found |= {str(one["path"]): int(one["size"]) for one in page if one["path"] in wanted}
            if len(found) == len(wanted) or str(page[-1]["path"]) > last:
                break
        return found

    def list(self, folder: str) -> list[str]:
        found = self._done(lambda: _obstore().list_with_delimiter(self._bucket, _inside(folder) or None))
        paths = [*found["common_prefixes"], *(str(one["path"]) for one in found["objects"])]
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in paths)

    def files(self, folder: str) -> Iterator[StoredFile]:
        for page in self._pages(folder):
            for one in page:
                yield StoredFile(str(one["path"]), int(one["size"]), one["last_modified"].timestamp())

    def _pages(self, folder: str, after: str | None = None) -> Iterator[Sequence[Any]]:
        """A listing, in the order of names, after this one. None of its pages is empty."""
        pages: Any = None

        def following() -> Any:
            nonlocal pages
            if pages is None:
                pages = _obstore().list(self._bucket, _inside(folder) or None, offset=after)
            try:
                return next(pages, None)
            except Exception:
                pages = None  # one that failed does not go on: what comes next is a listing after what was given
                raise

        while (page := self._done(following)) is not None:
            # Some servers begin at the beginning, whatever they are asked for (Azurite does).
            if page := [one for one in page if after is None or str(one["path"]) > after]:
                yield page
                after = str(page[-1]["path"])

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._done(lambda: _obstore().delete(self._bucket, _inside(name)))

    def discard_unfinished(self, folder: str, before: float) -> int:
        """A file is there as a whole or not at all. Parts of uploads that were cut off are for a rule of the bucket."""
        return 0

    def delete_folder(self, folder: str) -> None:
        for file in list(self.files(folder)):
            self.delete(file.name)

    def link(self, name: str, other: str, durable: bool = False) -> None:
        """A copy that the store makes by itself: no byte comes through here."""
        self._done(lambda: _obstore().copy(self._bucket, _inside(name), _inside(other)))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        return self._done(lambda: bytes(_obstore().get_range(self._bucket, _inside(name), start=start, end=end)))

    def _done(self, request: Callable[[], T]) -> T:
        """What goes wrong leaves as an OSError, as it does in a folder."""
        began, wait = time.monotonic(), _FIRST_WAIT
        while True:
            try:
                return request()
            except (_obstore().exceptions.BaseError, FileNotFoundError) as error:
                if _BROKEN_OFF not in str(error) or time.monotonic() - began > SECONDS:
                    raise self._as_os_error(error) from None
            time.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)

    def _as_os_error(self, error: Exception) -> OSError:
        exceptions = _obstore().exceptions
        if isinstance(error, exceptions.NotFoundError | FileNotFoundError) or _NO_SUCH_PARTS in str(error):
            return FileNotFoundError(2, f"not found in {self._address}")
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return PermissionError(13, f"{self._address} refuses us: {_said(error)}")
        return OSError(5, f"{self._address} does not answer as it should: {_said(error)}")


class _Parts(io.RawIOBase):
    """A file of the store that is read in parts: what pyarrow asks for, and a little more at a time."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        size = store.size(name)
        if size is None:
            raise FileNotFoundError(2, "No such file", name)
        self._store, self._name, self._size = store, name, size
        self._at = 0
        self._from, self._held = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        if self._at < self._from or end > self._from + len(self._held):
            self._held = self._store.read_range(self._name, self._at, min(self._size, max(end, self._at + _AT_LEAST)))
            self._from = self._at
        found = self._held[self._at - self._from : end - self._from]
        self._at = end
        return found


def _obstore() -> Any:
    """The package, which only those need who use object stores."""
    try:
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise UsageError(
            70,
            "a ledger in an object store needs the package 'obstore', which is not installed",
            hint="Type: pip install 'hailstorm[objects]'",
        ) from error
    return obstore


def _inside(name: str) -> str:
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") for part in parts):
        raise outside(name)
    return name


def _endpoints() -> Iterator[str]:
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT"):
        yield os.environ.get(variable, "").lower()


def _may_pass(error: Exception) -> bool:
    """A refusal with a reason stays one; what had no answer, or one of the server's own troubles, may pass."""
    status = _STATUS.search(str(error))
    return status is None or status[1][0] == "5" or status[1] in ("408", "409", "429")


def _said(error: Exception) -> str:
    """What may be shown of an error: its code and status. The rest may hold keys, signatures and whole answers."""
    text = str(error)
    if _METADATA in text:  # asked last, where nothing else has said who we are
        return "there are no credentials in the environment, and this machine has no role"
    found = [match[1] for match in (_STATUS.search(text), _CODE.search(text)) if match]
    if not found and "timed out" in text:
        found = ["it takes too long"]
    if not found and "error sending request" in text:
        found = ["it cannot be reached"]
    return " ".join(found) or type(error).__name__.removesuffix("Error")
