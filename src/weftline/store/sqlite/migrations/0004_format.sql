-- Which vocabulary a run's log and a thread's messages are written in; 0 for those from before there was a number.
ALTER TABLE runs ADD COLUMN format INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN format INTEGER NOT NULL DEFAULT 0;
