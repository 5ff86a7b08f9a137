import gc

# Loading modules leaves nothing to collect, and looking for it takes a tenth of a server's start.
gc.set_threshold(20_000, 20, 50)

from weftline.cli import main  # noqa: E402 - after the line that makes it cheap

if __name__ == "__main__":
    main()
