"""People's own shapes: agents, instructions and schedules as Markdown, with frontmatter above the text.

    agents/helper.md                           schedules/morning.md
    ---                                        ---
    description: Answers what others do not.   cron: 0 8 * * 1-5
    model: fast                                timezone: Europe/Oslo
    tools: find_order, fetch                   agent: helper
    ---                                        ---
    You answer briefly.                        Sum up what came in since yesterday.

The body is the prompt. An agent may do without frontmatter. Fields that are not ours are ignored, as such files are
shared with other programs.
"""

from __future__ import annotations

from collections.abc import Collection

from weftline.agent.skills.format import Unreadable, read_leniently, split, split_entries
from weftline.errors import InvalidRequest, Issue
from weftline.text.suggestions import did_you_mean
from weftline.threads.definitions.agents import AgentDefinition, SideConfig
from weftline.threads.definitions.base import DefinitionError
from weftline.threads.definitions.prompts import PromptDefinition
from weftline.threads.registry import ScheduleDefinition
from weftline.workspace.cron import parse_cron

AGENT_FIELDS = ("name", "description", "model", "tools")
SCHEDULE_FIELDS = ("name", "cron", "timezone", "agent")
INHERIT = "inherit"
"""The model of other programs' agents that have none of their own: the server's default here."""


class Markdown:
    """A Markdown file: its fields, its text, and on which line each field is."""

    def __init__(self, text: str, about: str) -> None:
        self.about = about
        self.fields: dict[str, object] = {}
        self.body = text.strip()
        self._lines = text.splitlines()
        self.issues: list[Issue] = []
        if text.lstrip("\ufeff\n").startswith("---"):
            try:
                document = split(text)
                self.fields.update(read_leniently(document.frontmatter).values)
                self.body = document.body.strip()
            except Unreadable as error:
                self.issues.append(Issue("frontmatter", str(error)))

    def line_of(self, variable: str, path: str = "") -> int:
        """Returns the line of a field, or of an item of it: `tools[1]`."""
        name, _, rest = path.partition(".")[0].partition("[")
        for number, line in enumerate(self._lines, start=1):
            if line.partition(":")[0].strip() == name:
                index = int(rest.rstrip("]")) + 1 if rest else 0
                item = self._lines[number + index - 1 : number + index]
                return number + index if item and item[0].strip().startswith("- ") else number
        return 1

    def text(self, name: str, default: str = "") -> str:
        value = self.fields.get(name, default)
        if isinstance(value, str):
            return value.strip()
        self.issues.append(Issue(name, "must be text"))
        return default

    def names(self, name: str) -> tuple[str, ...]:
        """Returns a list of names: a YAML list, or text with commas or spaces between them."""
        value = self.fields.get(name, "")
        if isinstance(value, str):
            return split_entries(value)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):  # pyright: ignore[reportUnknownVariableType]
            return tuple([str(one).strip() for one in value])  # pyright: ignore
        self.issues.append(Issue(name, "must be a list of names"))
        return ()

    def misspelled(self, known: Collection[str]) -> list[Issue]:
        """Returns the fields that look like one of ours."""
        found = [(one, did_you_mean(one, known, cutoff=0.8)) for one in self.fields if one not in known]
        return [Issue(one, f"is not a field of ours.{near}") for one, near in found if near]

    def done(self) -> None:
        if self.issues:
            raise DefinitionError(self.about, self.issues)


def agent_of(file: Markdown, stem: str) -> tuple[AgentDefinition, PromptDefinition]:
    """Returns the agent that a Markdown file is, and its prompt, which has the same name.

    Raises:
        DefinitionError: if a field is wrong; all of them are named.
    """
    name, description, model = file.text("name", stem) or stem, file.text("description"), file.text("model")
    tools = file.names("tools")
    if not file.body and not file.issues:
        file.issues.append(Issue("prompt", "is missing: write it below the frontmatter"))
    file.done()
    prompt = PromptDefinition(
        name=name,
        tool_description=description or name,
        prompt=file.body,
        model="" if model == INHERIT else model,
        tools=tools,
    )
    return AgentDefinition(name=name, side_a=SideConfig(prompt=name), description=description), prompt


def schedule_of(file: Markdown, stem: str, agents: Collection[str]) -> ScheduleDefinition:
    """Returns the schedule that a Markdown file is. Without `agent` it is for the only agent of the folder.

    Raises:
        DefinitionError: if a field is wrong; all of them are named.
    """
    agent, cron, timezone = file.text("agent"), file.text("cron"), file.text("timezone", "UTC")
    if not agent and len(agents) == 1:
        (agent,) = agents
    elif not agent:
        file.issues.append(Issue("agent", "is missing: the folder has several agents, or none"))
    if not cron:
        file.issues.append(Issue("cron", "is missing, such as `cron: 0 8 * * 1-5`"))
    else:
        try:
            parse_cron(cron, timezone)
        except InvalidRequest as error:
            file.issues += error.issues or (Issue("cron", error.message),)
    if not file.body:
        file.issues.append(Issue("prompt", "is missing: write it below the frontmatter"))
    file.done()
    name = file.text("name", stem) or stem
    return ScheduleDefinition(name=name, agent=agent, cron=cron, timezone=timezone, prompt=file.body)
