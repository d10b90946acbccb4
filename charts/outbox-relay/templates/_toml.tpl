{{/*
The configuration file from .Values.config. Helm's own toToml writes every number as a fraction, since YAML's
numbers come as such; the relay wants integers.
*/}}
{{- define "outbox-relay.toml" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "admin" (dict "listen" (include "outbox-relay.adminListen" .)) -}}
{{- range $key, $value := $config -}}
{{- if and (not (kindIs "map" $value)) (not (has $key (list "route" "source"))) (not (kindIs "invalid" $value)) }}
{{ include "outbox-relay.tomlPair" (list $key $value) }}
{{- end -}}
{{- end -}}
{{- range $section, $keys := $config -}}
{{- if kindIs "map" $keys }}

[{{ $section }}]
{{- range $key, $value := $keys -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ include "outbox-relay.tomlPair" (list $key $value) }}
{{- end -}}
{{- end -}}
{{- range $key, $below := $keys -}}
{{- if kindIs "map" $below }}

[{{ $section }}.{{ $key }}]
{{- range $name, $value := $below }}
{{ include "outbox-relay.tomlPair" (list $name $value) }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $list := list "route" "source" -}}
{{- range $table := index $config $list }}

[[{{ $list }}]]
{{- range $key, $value := $table }}
{{ include "outbox-relay.tomlPair" (list $key $value) }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* One key and its value. A key with dots is one of librdkafka's names; a TOML string is written as JSON writes it. */}}
{{- define "outbox-relay.tomlPair" -}}
{{- $key := index . 0 -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" $key }}{{ $key }}{{ else }}{{ toJson $key }}{{ end }} = {{ include "outbox-relay.tomlValue" (index . 1) }}
{{- end -}}

{{- define "outbox-relay.tomlValue" -}}
{{- if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . -}}{{- $items = append $items (include "outbox-relay.tomlValue" .) -}}{{- end -}}
[{{ join ", " $items }}]
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else if eq (toString (floor .)) (toString (float64 .)) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}
