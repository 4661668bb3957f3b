"""The brokers Redis and RabbitMQ."""
