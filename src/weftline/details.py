"""Details of a run that `weftline.events` leaves out: phases, usage, and who was asked what.

    async for event in run.events(profile="all"):
        match event:
            case PhaseChanged(phase=phase):
                print(phase)
            case _:
                pass

This is where programs import them from; they are defined beside the events.
"""

from weftline.events.details import *  # noqa: F403
