"""The stores in memory keep what every store promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from protolink.redaction import RedactionPolicy
from protolink.storage import InMemoryRunStore, InMemoryStorage, RunStore, Storage
from tests.unit.storage.conformance import RunStoreConformance, StorageConformance


class TestInMemoryStorage(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return InMemoryStorage("reader")


class TestInMemoryRunStore(RunStoreConformance):
    def make(self, tmp_path: Path, policy: RedactionPolicy | None = None) -> RunStore:
        return InMemoryRunStore(redaction_policy=policy)


def test_each_storage_is_its_own() -> None:
    """The namespace names it; nothing is shared behind the application's back."""
    InMemoryStorage("reader").save({"a": 1})

    assert InMemoryStorage("reader").load() is None
