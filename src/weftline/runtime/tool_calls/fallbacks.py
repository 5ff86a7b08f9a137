"""Server tools that replace a client that is gone.

The model did not ask for this tool, so none of its guards has seen the call: a tool that has any is not run.
"""

from __future__ import annotations

import logging

from weftline import prompts
from weftline.errors import InvalidRequest
from weftline.plan import A2ALocalRef, A2ARef, LocalRef, McpLocalRef, McpRef, RunPlan, ServerRef, StoredRef
from weftline.runtime.live import WorkingSet
from weftline.runtime.people.awaits import put_to_people
from weftline.runtime.services import Services
from weftline.runtime.tool_calls.final_args import PrepareFailed, final_args
from weftline.runtime.tool_calls.injecting import takes_injected
from weftline.runtime.tool_calls.toolbox import EMPTY
from weftline.text.suggestions import did_you_mean
from weftline.tools.arguments import InvalidArguments
from weftline.tools.base import Tool, ToolOutput, ends_run, is_carried_out_by_run

logger = logging.getLogger(__name__)


def check_fallbacks(plan: RunPlan) -> None:
    """Rejects a plan whose fallbacks cannot work."""
    rule = plan.limits.leases
    if rule is None or not rule.fallbacks:
        return
    once: set[str] = set()
    known: set[str] = set()
    for ref in plan.tools:
        match ref:
            case LocalRef():
                known.add(ref.name)
                if ref.effect == "once":
                    once.add(ref.name)
            case A2ALocalRef():
                known.add(ref.name)
            case McpLocalRef():
                known.update([entry.name for entry in ref.tools])
            case _:
                pass
    own = _own_names(plan)
    for name, fallback in rule.fallbacks.items():
        if name not in known:
            raise InvalidRequest(f"There is a fallback for {name!r}, but the run has no client-side tool of that name.")
        if name in once:
            raise InvalidRequest(
                f"The tool {name!r} is declared `once`: a call that may have started cannot be given to another tool."
            )
        if fallback in known:
            raise InvalidRequest(f"The fallback of {name!r}, {fallback!r}, is also executed by clients.")
        if own is not None and fallback not in own:
            near = did_you_mean(fallback, own)
            raise InvalidRequest(f"The fallback of {name!r}, {fallback!r}, is not a tool of the run.{near}")


def _own_names(plan: RunPlan) -> set[str] | None:
    """The names of a run's server tools; None if some are known only when the tools are opened."""
    if plan.code is not None or any(isinstance(ref, StoredRef | A2ARef | McpRef) for ref in plan.tools):
        return None
    bare = [ref.name.rpartition("/")[2] for ref in plan.tools if isinstance(ref, ServerRef)]
    return {*bare, *[name.replace("-", "_") for name in bare]}


async def refused_in_clients_place(tool: Tool, args: bytes, work: WorkingSet, services: Services) -> ToolOutput | None:
    """Returns the text for the model if the tool cannot execute the call with these arguments; None if it can."""
    name, toolbox = tool.spec.name, work.toolbox or EMPTY
    why = ""
    if tool.client is not None:
        why = prompts.calls.FALLBACK_FOR_CLIENTS
    elif is_carried_out_by_run(tool) or ends_run(tool):
        why = prompts.calls.FALLBACK_NOT_PLAIN
    elif name in toolbox.excluded:
        why = prompts.calls.FALLBACK_NOT_ALLOWED
    elif toolbox.code is not None and toolbox.code.has_gates:
        why = prompts.calls.FALLBACK_NOT_CHECKED
    elif takes_injected(tool):
        why = prompts.calls.FALLBACK_INJECTED
    elif put_to_people(tool, args, work) is not None:
        why = prompts.calls.FALLBACK_NOT_APPROVED
    if why:
        return ToolOutput.of(prompts.calls.no_fallback(name, why), is_error=True)
    try:
        # It runs with the bytes in the log, or not at all.
        same = await final_args(tool, args.decode(), services) == args
        why = "" if same else prompts.calls.FALLBACK_OTHER_ARGUMENTS
    except InvalidArguments as error:
        why = error.message.rstrip(".")
    except PrepareFailed as error:
        logger.exception("run %s: the fallback %s failed to prepare a call", work.run_id, name)
        why = prompts.calls.fallback_failed(str(error))
    return ToolOutput.of(prompts.calls.no_fallback(name, why), is_error=True) if why else None
