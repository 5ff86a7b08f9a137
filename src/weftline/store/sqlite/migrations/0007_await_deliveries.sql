-- Webhooks hear about questions to people, too: `about` is the await's id, empty for the end of the run.
ALTER TABLE deliveries ADD COLUMN about TEXT NOT NULL DEFAULT '';
DROP INDEX deliveries_by_webhook;
CREATE UNIQUE INDEX deliveries_by_webhook ON deliveries (webhook, run, about);
