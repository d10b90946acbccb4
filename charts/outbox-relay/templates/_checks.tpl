{{/* What a schema cannot say, with what to do about it. */}}
{{- define "outbox-relay.checks" -}}
{{- range $name, $value := dig "kafka" "properties" (dict) .Values.config -}}
{{- if regexMatch "password|passphrase|secret|key[.]pem$|oauthbearer[.]config" $name -}}
{{- fail (printf "config.kafka.properties.%s is a secret and a ConfigMap is none: put it into the Secret of secrets.kafka" $name) -}}
{{- end -}}
{{- end -}}
{{- $brokers := include "outbox-relay.kafkaBrokers" . -}}
{{- $rabbitmq := .Values.secrets.rabbitmq.existingSecret -}}
{{- if not (or $brokers $rabbitmq) -}}
{{- fail "no broker: set secrets.rabbitmq.existingSecret for RabbitMQ or config.kafka.brokers for Kafka" -}}
{{- end -}}
{{- if and .Values.secrets.kafka.existingSecret (not $brokers) -}}
{{- fail "secrets.kafka.existingSecret is set and config.kafka.brokers is not" -}}
{{- end -}}
{{- if and $brokers $rabbitmq -}}
{{- $last := last (default (list (dict)) .Values.config.route) -}}
{{- if ne (default "" $last.match) "*" -}}
{{- fail "with RabbitMQ and Kafka the last entry of config.route must have match: \"*\"; to serve Kafka alone set secrets.rabbitmq.existingSecret to \"\"" -}}
{{- end -}}
{{- end -}}
{{- $graceMs := int64 (dig "shutdown" "grace_ms" 20000 .Values.config) -}}
{{- $least := add (div (add $graceMs 999) 1000) 6 -}}
{{- if lt (int64 .Values.terminationGracePeriodSeconds) $least -}}
{{- fail (printf "terminationGracePeriodSeconds must be at least %d: config.shutdown.grace_ms is %d, and the last marks and leases take 6 s more" $least $graceMs) -}}
{{- end -}}
{{- if and .Values.migration.enabled (not .Values.migration.existingSecret) -}}
{{- fail "migration.existingSecret names the Secret with the URL of the schema's owner" -}}
{{- end -}}
{{- end -}}
