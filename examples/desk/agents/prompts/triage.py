from weftline.threads import PromptEnvPart, PromptIncludePart, define_prompt

prompt = define_prompt(
    name="triage",
    model="desk",
    tool_description="Sorts a customer's request.",
    prompt=["You answer for ", PromptEnvPart("COMPANY"), ". ", PromptIncludePart("tone")],
    tools=["find_order", "refund"],
    env={"COMPANY": "Tea & Co"},
)
