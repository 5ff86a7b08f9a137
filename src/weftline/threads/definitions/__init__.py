"""What the files of a folder define, by topic. See docs/folders.md."""
