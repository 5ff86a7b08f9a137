-- Features have our own names; clients have others for them.
UPDATE features_off SET feature = 'api_keys' WHERE feature = 'apiKeys';
UPDATE features_off SET feature = 'oauth_apps' WHERE feature = 'oauthApps';
