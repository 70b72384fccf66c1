-- How many test webhooks an endpoint was sent lately is counted before each.
CREATE INDEX webhook_deliveries_tests ON webhook_deliveries (merchant_id, realm, created_at_ms) WHERE trigger = 'test';
