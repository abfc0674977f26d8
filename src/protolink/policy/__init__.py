"""Policies and approvals."""

from protolink.policy.approvals import ApprovalDecision, ApprovalHandler, ApprovalRequest
from protolink.policy.policies import CapabilityPolicy, Policy, PolicyDecision, PolicyEffect

__all__ = [
    "ApprovalDecision",
    "ApprovalHandler",
    "ApprovalRequest",
    "CapabilityPolicy",
    "Policy",
    "PolicyDecision",
    "PolicyEffect",
]
