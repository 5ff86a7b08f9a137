"""Tools stored in a workspace that are code. It runs in a sandbox, with its arguments and secrets and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec import UNSET, Raw, Struct, UnsetType

from weftline import prompts
from weftline.kernel.entries import Effect
from weftline.providers.base import ToolSpec
from weftline.sandbox.base import Language, SandboxUnavailable
from weftline.sandbox.sandbox import Sandbox
from weftline.text.canonical import parse
from weftline.text.redaction import Redactor
from weftline.tools.base import ToolContext, ToolOutput
from weftline.tools.builtin.code_running import to_tool_output
from weftline.tools.remote import RemoteTool
from weftline.tools.schema import object_schema

TIMEOUT_S = 30.0
MAX_WAIT_S = 300.0
"""How long code may wait for a slot, which does not count as running."""
_END_S = 10.0
"""The time left to end it and report before the whole call is given up."""


class CodeSpec(Struct, frozen=True, omit_defaults=True):
    """A stored code tool, without its secrets. Its default export is called with the arguments, as one object."""

    name: str
    source: str
    language: Language = "typescript"
    description: str = ""
    parameters: Raw | UnsetType = UNSET
    effect: Effect | None = None
    timeout_s: float = TIMEOUT_S
    secrets: tuple[str, ...] = ()
    """Their names; the values are stored separately, sealed."""


class StoredCodeTool(RemoteTool):
    """A stored code tool. Secrets in what the code returns, logs or throws are redacted."""

    def __init__(self, spec: CodeSpec, *, secrets: Mapping[str, str], sandbox: Sandbox) -> None:
        parameters = None if spec.parameters is UNSET else spec.parameters
        super().__init__(
            ToolSpec(spec.name, spec.description, object_schema(parameters)), redactor=Redactor(secrets.values())
        )
        self.effect: Effect = spec.effect or "once"
        self.concurrent = self.effect == "read"
        self.timeout_s: float | None = MAX_WAIT_S + spec.timeout_s + _END_S
        self._code = spec
        self._secrets = dict(secrets)
        self._sandbox = sandbox

    async def ask(self, args: bytes, context: ToolContext) -> ToolOutput:
        code = self._code
        try:
            execution = self._sandbox.run_code(
                code.source,
                language=code.language,
                args=[parse(args)],
                imports={"env": {"env": self._secrets}},
                filename=f"{code.name}.{'py' if code.language == 'python' else 'ts'}",
                owner=context.workspace,
            )
        except SandboxUnavailable as error:
            return ToolOutput.of(prompts.code.sandbox_missing(error.message), is_error=True)
        loop = asyncio.get_running_loop()
        late = loop.call_later(MAX_WAIT_S, execution.terminate, prompts.code.sandbox_busy(MAX_WAIT_S))

        def began() -> None:
            nonlocal late
            late.cancel()
            late = loop.call_later(code.timeout_s, execution.terminate, prompts.code.tool_out_of_time(code.timeout_s))

        execution.when_started(began)
        try:
            return to_tool_output(await execution, [])
        finally:
            late.cancel()
            execution.terminate()
            await execution.wait()
