from weftline.threads import define_model

model = define_model(name="desk", provider="test", model="desk")
