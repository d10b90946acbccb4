{{- define "outbox-relay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for a label and for the suffixes of the Job and the test. */}}
{{- define "outbox-relay.fullname" -}}
{{- $name := include "outbox-relay.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* All pods of the release: relays, the migration and the test. */}}
{{- define "outbox-relay.releaseLabels" -}}
app.kubernetes.io/name: {{ include "outbox-relay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Relays only: a ReplicaSet adopts any pod that its selector fits, so the test's pod must not. */}}
{{- define "outbox-relay.selectorLabels" -}}
{{ include "outbox-relay.releaseLabels" . }}
app.kubernetes.io/component: relay
{{- end -}}

{{- define "outbox-relay.labels" -}}
{{ include "outbox-relay.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "outbox-relay.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "outbox-relay.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "outbox-relay.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "outbox-relay.kafkaBrokers" -}}
{{- dig "kafka" "brokers" "" .Values.config -}}
{{- end -}}

{{/* Where the relay listens; an IPv6 address needs brackets. */}}
{{- define "outbox-relay.adminListen" -}}
{{- if contains ":" .Values.admin.address -}}
[{{ .Values.admin.address }}]:{{ int .Values.admin.port }}
{{- else -}}
{{ .Values.admin.address }}:{{ int .Values.admin.port }}
{{- end -}}
{{- end -}}

{{/* Files of Secrets belong to root; without a group of the pod's only everybody's right lets the relay read them. */}}
{{- define "outbox-relay.secretMode" -}}
{{- if dig "fsGroup" "" (default (dict) .Values.podSecurityContext) }}0440{{ else }}0444{{ end -}}
{{- end -}}

{{/* The relay's files, as volumes and as mounts. */}}
{{- define "outbox-relay.volumes" -}}
- name: config
  configMap:
    name: {{ include "outbox-relay.fullname" . }}
- name: secrets
  projected:
    defaultMode: {{ include "outbox-relay.secretMode" . }}
    sources:
      {{- with .Values.secrets.database }}
      - secret:
          name: {{ .existingSecret }}
          items: [{key: {{ .key | quote }}, path: database-url}]
      {{- end }}
      {{- with .Values.secrets.rabbitmq }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret }}
          items: [{key: {{ .key | quote }}, path: amqp-url}]
      {{- end }}
      {{- end }}
      {{- with .Values.secrets.kafka }}
      {{- if .existingSecret }}
      - secret:
          name: {{ .existingSecret }}
          items: [{key: {{ .key | quote }}, path: kafka-properties}]
      {{- end }}
      {{- end }}
{{- if or .Values.certificates.existingSecret .Values.certificates.existingConfigMap }}
- name: certificates
  projected:
    defaultMode: {{ include "outbox-relay.secretMode" . }}
    sources:
      {{- with .Values.certificates.existingSecret }}
      - secret:
          name: {{ . }}
      {{- end }}
      {{- with .Values.certificates.existingConfigMap }}
      - configMap:
          name: {{ . }}
      {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "outbox-relay.volumeMounts" -}}
- name: config
  mountPath: /etc/outbox-relay
  readOnly: true
- name: secrets
  mountPath: /run/secrets/outbox-relay
  readOnly: true
{{- if or .Values.certificates.existingSecret .Values.certificates.existingConfigMap }}
- name: certificates
  mountPath: {{ .Values.certificates.mountPath }}
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The relay looks for database-url, amqp-url and kafka-properties there. */}}
{{- define "outbox-relay.env" -}}
- name: CREDENTIALS_DIRECTORY
  value: /run/secrets/outbox-relay
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What every pod of the release shares. */}}
{{- define "outbox-relay.podSettings" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
