-- Long strings of bodies and messages are in `blobs`, once in a workspace; a row with marks in their place has a size.
ALTER TABLE entries ADD COLUMN size INTEGER;
ALTER TABLE thread_messages ADD COLUMN size INTEGER;
