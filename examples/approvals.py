"""Rules for actions, and a person who decides about the exact action. Offline.

Run it with `python examples/approvals.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from protolink import (
    ActionDeniedError,
    Agent,
    ApprovalDecision,
    ApprovalRequest,
    CapabilityPolicy,
    Policy,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunContext,
)
from protolink.llms import MockLLM

sent: list[str] = []
deleted: list[str] = []


def send_mail(to: str, subject: str) -> str:
    """Send a message."""
    sent.append(f"{subject} -> {to}")
    return "sent"


def delete_file(path: str) -> str:
    """Delete a file for good."""
    deleted.append(path)
    return "deleted"


class NoStrangers(Policy):
    """Mail to other companies is refused. A policy sees the very arguments that would be used."""

    name = "no_strangers"

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        if action.name == "send_mail" and not action.payload["arguments"]["to"].endswith("@example.com"):
            return PolicyDecision(PolicyEffect.DENY, reason="only colleagues may be written to", policy_name=self.name)
        return PolicyDecision(PolicyEffect.ALLOW, policy_name=self.name)


def ask(request: ApprovalRequest, context: RunContext) -> ApprovalDecision:
    """A plain function may block, for it runs in a worker thread. This one stands in for `input()`."""
    print(request.render())
    allowed = request.action.name == "send_mail"
    print("->", "approved" if allowed else "declined", "\n")
    return ApprovalDecision(
        approved=allowed,
        request_id=request.request_id,
        reason=None if allowed else "files stay where they are",
        decided_by="alice",
    )


def clerk(*script: Any) -> Agent:
    """An agent that has to ask before it writes or deletes, and that never writes to strangers."""
    agent = Agent(
        name="clerk",
        llm=MockLLM(sequential_responses=script),
        policy=[CapabilityPolicy({"mail.*": "require_approval", "files.*": "require_approval"}), NoStrangers()],
        approval_handler=ask,
        verbosity=0,
    )
    agent.tool(capabilities=["mail.send"])(send_mail)
    agent.tool(capabilities=["files.delete"])(delete_file)
    return agent


async def attempt(agent: Agent, prompt: str, context: RunContext | None = None) -> None:
    try:
        print(f"{prompt} {await agent.invoke(prompt, context=context)}\n")
    except ActionDeniedError as error:
        print(f"{prompt} Refused: {error}\n")


async def main() -> None:
    def mail(to: str) -> dict[str, Any]:
        return {"type": "tool_call", "tool": "send_mail", "args": {"to": to, "subject": "Lunch"}}

    deletion = {"type": "tool_call", "tool": "delete_file", "args": {"path": "notes.txt"}}

    await attempt(clerk(mail("bob@example.com"), "Bob knows."), "Invite Bob.")
    await attempt(clerk(mail("eve@elsewhere.org"), "Eve knows."), "Invite Eve.")
    await attempt(clerk(deletion, "Gone."), "Tidy up.")
    # What a run is permitted can only be narrower than what the agent is.
    await attempt(clerk(mail("bob@example.com")), "Invite Bob again.", RunContext(permissions={"mail.*": "deny"}))

    print(f"sent: {sent}, deleted: {deleted}")


if __name__ == "__main__":
    asyncio.run(main())
