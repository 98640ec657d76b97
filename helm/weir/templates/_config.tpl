{{/* Paths in the container. Every volume is a directory, because files mounted by `subPath` are never updated. */}}
{{- define "weir.paths" -}}
config: /etc/weir/config
rules: /etc/weir/rules
cache: /etc/weir/cache
tls: /etc/weir/tls
clientCA: /etc/weir/client-ca
upstream: /etc/weir/upstream
store: /etc/weir/store
password: /etc/weir/password
admin: /etc/weir/admin
listeners: /etc/weir/listeners
{{- end }}

{{/* The files of a listener's TLS. Takes the root and the listener's name. */}}
{{- define "weir.listenerTLS" -}}
{{- $name := index . 1 }}
{{- $folder := printf "%s/%s" (include "weir.paths" (index . 0) | fromYaml).listeners $name }}
{{- if include "weir.tlsSecret" . }}
{{- with (index (index . 0).Values $name).tls }}
{{ $name }}-tls-cert: {{ printf "%s/tls/tls.crt" $folder | quote }}
{{ $name }}-tls-key: {{ printf "%s/tls/tls.key" $folder | quote }}
{{- if .clientCA.existingSecret }}
{{ $name }}-tls-client-ca: {{ printf "%s/client-ca/%s" $folder .clientCA.key | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether the rules come from outside the chart's values. */}}
{{- define "weir.rulesExist" -}}
{{- if or .Values.rules.existingConfigMap .Values.rules.existingVolume }}yes{{ end }}
{{- end }}

{{/* The source of the volume of rules. */}}
{{- define "weir.rulesVolume" -}}
{{- if .Values.rules.existingVolume }}
{{- toYaml .Values.rules.existingVolume }}
{{- else -}}
configMap:
  name: {{ .Values.rules.existingConfigMap | default (printf "%s-rules" (include "weir.fullname" .)) | quote }}
{{- end }}
{{- end }}

{{/*
The files of the rules, by kind. The chart's own ConfigMap always has a file of overrides, so that adding the first override
restarts nothing.
*/}}
{{- define "weir.ruleFiles" -}}
{{- $folder := (include "weir.paths" . | fromYaml).rules }}
{{- $rules := .Values.rules }}
{{- $limits := "limits.yaml" }}
{{- $overrides := list "overrides.yaml" }}
{{- if include "weir.rulesExist" . }}
{{- $limits = $rules.limitsKey }}
{{- $overrides = $rules.overridesKeys }}
{{- end }}
{{- with $limits }}
limits: {{ printf "%s/%s" $folder . | quote }}
{{- end }}
overrides:
  {{- range $overrides }}
  - {{ printf "%s/%s" $folder . | quote }}
  {{- end }}
envoyRatelimit:
  {{- range $rules.envoyRatelimitKeys }}
  - {{ printf "%s/%s" $folder . | quote }}
  {{- end }}
{{- end }}

{{/* The `--config` file: the flags that have values in the chart, then `flags`. */}}
{{- define "weir.config" -}}
{{- $paths := include "weir.paths" . | fromYaml }}
{{- $files := include "weir.ruleFiles" . | fromYaml }}
{{- with $files.limits }}
limits: {{ . | quote }}
{{- end }}
{{- with concat ($files.overrides | default list) .Values.rules.overridesUrls }}
overrides:
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
{{- end }}
{{- if .Values.rules.overridesUrls }}
overrides-cache: {{ $paths.cache | quote }}
{{- end }}
{{- with $files.envoyRatelimit }}
envoy-ratelimit-config:
  {{- range . }}
  - {{ . | quote }}
  {{- end }}
{{- end }}
{{- if .Values.proxy.enabled }}
{{- with .Values.proxy }}
proxy: {{ include "weir.listen" (list $ .port) | quote }}
upstream:
  {{- range .upstreams }}
  - {{ . | quote }}
  {{- end }}
{{- with include "weir.proxySecrets" $ | fromYamlArray }}
tls-cert:
  {{- range . }}
  - {{ printf "%s/%s/tls.crt" $paths.tls . | quote }}
  {{- end }}
tls-key:
  {{- range . }}
  - {{ printf "%s/%s/tls.key" $paths.tls . | quote }}
  {{- end }}
{{- end }}
{{- with .tls.clientCA }}
{{- if .existingSecret }}
tls-client-ca: {{ printf "%s/%s" $paths.clientCA .key | quote }}
tls-client-auth: {{ .auth | quote }}
{{- end }}
{{- end }}
{{- with .upstreamTLS }}
{{- if .existingSecret }}
{{- with .caKey }}
upstream-ca: {{ printf "%s/%s" $paths.upstream . | quote }}
{{- end }}
{{- with .certKey }}
upstream-cert: {{ printf "%s/%s" $paths.upstream . | quote }}
{{- end }}
{{- with .keyKey }}
upstream-key: {{ printf "%s/%s" $paths.upstream . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name := list "grpc" "check" "spoe" }}
{{- $listener := index $.Values $name }}
{{- if $listener.enabled }}
{{ $name }}: {{ include "weir.listen" (list $ $listener.port) | quote }}
{{- include "weir.listenerTLS" (list $ $name) }}
{{- end }}
{{- end }}
{{- include "weir.listenerTLS" (list . "admin") }}
{{- with .Values.admin.tokens }}
{{- if .existingSecret }}
admin-token-file: {{ printf "%s/%s" $paths.admin .key | quote }}
{{- end }}
{{- end }}
{{- if eq .Values.store.type "redis" }}
{{- with .Values.store.redis }}
{{- if .url }}
store: {{ .url | quote }}
{{- if .existingSecret }}
store-password-file: {{ printf "%s/%s" $paths.password .passwordKey | quote }}
{{- with .username }}
store-user: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .tls }}
{{- if .existingSecret }}
{{- with .caKey }}
store-ca-file: {{ printf "%s/%s" $paths.store . | quote }}
{{- end }}
{{- with .certKey }}
store-cert-file: {{ printf "%s/%s" $paths.store . | quote }}
{{- end }}
{{- with .keyKey }}
store-key-file: {{ printf "%s/%s" $paths.store . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- else }}
store: memory
{{- end }}
drain-delay: {{ printf "%ds" (int .Values.drain.delaySeconds) | quote }}
grace: {{ printf "%ds" (int .Values.drain.graceSeconds) | quote }}
{{- /* A sidecar does not remove x-envoy-external-address from what clients send, so a mesh believes the connection only. */}}
{{- $flags := .Values.flags }}
{{- if and .Values.istio.enabled (not (index $flags "grpc-client-address")) }}
{{- $flags = merge (dict "grpc-client-address" (list "source")) $flags }}
{{- end }}
{{- range $name, $value := $flags }}
{{- if kindIs "slice" $value }}
{{ $name }}:
  {{- range $value }}
  - {{ include "weir.flag" . }}
  {{- end }}
{{- else if not (kindIs "invalid" $value) }}
{{ $name }}: {{ include "weir.flag" $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* The environment of the container. */}}
{{- define "weir.env" -}}
{{- $paths := include "weir.paths" . | fromYaml -}}
# In the environment, so that `weir explain` and `weir bucket` use them too under `kubectl exec`.
- name: WEIR_CONFIG
  value: {{ $paths.config }}/weir.yaml
- name: WEIR_ADMIN
  value: {{ include "weir.listen" (list . .Values.admin.port) | quote }}
{{- if include "weir.tlsSecret" (list . "admin") }}
{{- with .Values.admin.tls }}
# For `weir health`, `weir bucket` and the like.
- name: WEIR_ADMIN_CA
  value: {{ printf "%s/admin/tls/%s" $paths.listeners .caKey | quote }}
- name: WEIR_ADMIN_SERVER_NAME
  value: {{ include "weir.host" (list $ "-admin") | quote }}
{{- if .clientCA.existingSecret }}
- name: WEIR_ADMIN_CERT
  value: {{ printf "%s/admin/tls/tls.crt" $paths.listeners | quote }}
- name: WEIR_ADMIN_KEY
  value: {{ printf "%s/admin/tls/tls.key" $paths.listeners | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.store.redis }}
{{- if and (eq $.Values.store.type "redis") .existingSecret (not .url) }}
- name: WEIR_STORE
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .urlKey | quote }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The mounted Secrets: volume name, Secret and path. */}}
{{- define "weir.secrets" -}}
{{- $paths := include "weir.paths" . | fromYaml -}}
{{- if .Values.proxy.enabled }}
{{- range $place, $secret := include "weir.proxySecrets" . | fromYamlArray }}
- { name: tls-{{ $place }}, secret: {{ $secret | quote }}, path: {{ printf "%s/%s" $paths.tls $secret | quote }} }
{{- end }}
{{- with .Values.proxy.tls.clientCA.existingSecret }}
- { name: client-ca, secret: {{ . | quote }}, path: {{ $paths.clientCA }} }
{{- end }}
{{- with .Values.proxy.upstreamTLS.existingSecret }}
- { name: upstream-tls, secret: {{ . | quote }}, path: {{ $paths.upstream }} }
{{- end }}
{{- end }}
{{- range $name := list "grpc" "check" "spoe" "admin" }}
{{- $listener := index $.Values $name }}
{{- $secret := include "weir.tlsSecret" (list $ $name) }}
{{- if and $secret (or (eq $name "admin") $listener.enabled) }}
- { name: {{ $name }}-tls, secret: {{ $secret | quote }}, path: {{ printf "%s/%s/tls" $paths.listeners $name | quote }} }
{{- with $listener.tls.clientCA.existingSecret }}
- { name: {{ $name }}-client-ca, secret: {{ . | quote }}, path: {{ printf "%s/%s/client-ca" $paths.listeners $name | quote }} }
{{- end }}
{{- end }}
{{- end }}
{{- if eq .Values.store.type "redis" }}
{{- with .Values.store.redis }}
{{- if and .url .existingSecret }}
- { name: store-password, secret: {{ .existingSecret | quote }}, path: {{ $paths.password }} }
{{- end }}
{{- end }}
{{- with .Values.store.redis.tls.existingSecret }}
- { name: store-tls, secret: {{ . | quote }}, path: {{ $paths.store }} }
{{- end }}
{{- end }}
{{- with .Values.admin.tokens.existingSecret }}
- { name: admin-tokens, secret: {{ . | quote }}, path: {{ $paths.admin }} }
{{- end }}
{{- end }}
