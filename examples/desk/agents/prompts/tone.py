from weftline.threads import define_prompt

prompt = define_prompt(name="tone", model="desk", tool_description="How we write.", prompt="Be brief and kind.")
