"""Who can be reached where."""

from protolink.discovery.port import Directory
from protolink.discovery.registry import Registry
from protolink.discovery.remote import RegistryClient
from protolink.discovery.signed import SignedRegistry

__all__ = ["Directory", "Registry", "RegistryClient", "SignedRegistry"]
