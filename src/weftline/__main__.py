import atexit
import gc

# Loading modules leaves nothing to collect, and looking for it takes a tenth of a server's start. The same at the end:
# what is left goes with the process.
gc.set_threshold(20_000, 20, 50)
atexit.register(gc.freeze)

from weftline.cli import main  # noqa: E402 - after the lines that make it cheap

if __name__ == "__main__":
    main()
