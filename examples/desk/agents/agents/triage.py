from weftline.threads import SideConfig, define_agent

agent = define_agent(name="triage", side_a=SideConfig(prompt="triage"))
