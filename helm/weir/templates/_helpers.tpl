{{/* The base name of all objects: the release's name, plus the chart's unless it is already part of it. */}}
{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "weir.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "weir.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* The pods' selector labels, which must never change. */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels of an object: the chart's, then the object's and `commonLabels`, which do not override the chart's. */}}
{{- define "weir.labels" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $version := $root.Values.image.tag | default $root.Chart.AppVersion | trunc 63 | trimSuffix "-" }}
{{- $own := dict "helm.sh/chart" $chart "app.kubernetes.io/version" $version }}
{{- $_ := set $own "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- $selected := include "weir.selectorLabels" $root | fromYaml }}
{{- merge (dict) $own $selected (index . 1) $root.Values.commonLabels | toYaml }}
{{- end }}

{{/* `metadata` of an object. Takes a list: the root, a suffix for the name, more labels, and annotations. */}}
{{- define "weir.metadata" -}}
{{- $root := index . 0 -}}
name: {{ printf "%s%s" (include "weir.fullname" $root) (index . 1) | quote }}
labels:
  {{- include "weir.labels" (list $root (index . 2)) | nindent 2 }}
{{- with merge (dict) (index . 3) $root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "weir.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{/* The image. `global.imageRegistry` takes precedence over `image.registry`; without either, the repository has the host. */}}
{{- define "weir.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry }}
{{- with .Values.image }}
{{- $name := ternary (printf "%s/%s" $registry .repository) .repository (not (empty $registry)) }}
{{- if .digest }}
{{- printf "%s@%s" $name .digest }}
{{- else }}
{{- printf "%s:%s" $name (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The pull secrets of the chart and of its parent, which may list only names. */}}
{{- define "weir.imagePullSecrets" -}}
{{- $names := list }}
{{- range concat .Values.global.imagePullSecrets .Values.imagePullSecrets }}
{{- $names = append $names (kindIs "map" . | ternary . (dict "name" .)).name }}
{{- end }}
{{- range $names | uniq }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{/* A listener's address: `host:port`, with an IPv6 host in brackets. Takes the root and a port. */}}
{{- define "weir.listen" -}}
{{- $host := (index . 0).Values.listenAddress -}}
{{- if contains ":" $host }}[{{ $host }}]{{ else }}{{ $host }}{{ end }}:{{ int (index . 1) }}
{{- end }}

{{/* The Secret of a listener's certificate, if any: the one that the values name, or cert-manager's. Takes the root and its name. */}}
{{- define "weir.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- if has $name $root.Values.certManager.listeners }}
{{- printf "%s-%s-tls" (include "weir.fullname" $root) $name }}
{{- else }}
{{- (index $root.Values $name).tls.existingSecret }}
{{- end }}
{{- end }}

{{/* The Secrets of the proxy's certificates. Takes the root. */}}
{{- define "weir.proxySecrets" -}}
{{- $secrets := .Values.proxy.tls.existingSecrets }}
{{- if has "proxy" .Values.certManager.listeners }}
{{- $secrets = append $secrets (printf "%s-proxy-tls" (include "weir.fullname" .)) }}
{{- end }}
{{- range $secrets }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The scheme of a listener. Takes the root and the listener's name. */}}
{{- define "weir.scheme" -}}
{{- if eq (index . 1) "proxy" }}
{{- ternary "http" "https" (empty (include "weir.proxySecrets" (index . 0))) }}
{{- else }}
{{- ternary "http" "https" (empty (include "weir.tlsSecret" .)) }}
{{- end }}
{{- end }}

{{/* Whether a value that may be a number is given: 0 is, a null and an empty text are not. */}}
{{- define "weir.isSet" -}}
{{- if not (or (kindIs "invalid" .) (eq (toString .) "")) }}yes{{ end }}
{{- end }}

{{/*
How a Service is reached: its type and what belongs to it. Takes the values of the Service.
*/}}
{{- define "weir.serviceType" -}}
type: {{ .type | quote }}
{{- with .loadBalancerIP }}
loadBalancerIP: {{ . | quote }}
{{- end }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . | quote }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .externalTrafficPolicy }}
externalTrafficPolicy: {{ . | quote }}
{{- end }}
{{- with .internalTrafficPolicy }}
internalTrafficPolicy: {{ . | quote }}
{{- end }}
{{- end }}

{{/*
What a probe does. Takes the root, the path and the arguments of `weir health`. The kubelet does not check certificates and has
none.
*/}}
{{- define "weir.probe" -}}
{{- $secret := include "weir.tlsSecret" (list (index . 0) "admin") }}
{{- if and $secret (index . 0).Values.admin.tls.clientCA.existingSecret -}}
exec: { command: {{ concat (list "/usr/bin/weir" "health") (index . 2) | toJson }} }
{{- else -}}
httpGet: { path: {{ index . 1 }}, port: admin{{ if $secret }}, scheme: HTTPS{{ end }} }
{{- end }}
{{- end }}

{{/* The open listeners for gateways and applications, as a map by port name. */}}
{{- define "weir.decisionPorts" -}}
{{- if .Values.grpc.enabled }}
grpc: { port: {{ int .Values.grpc.port }}, appProtocol: {{ ternary .Values.grpc.appProtocol "https" (empty (include "weir.tlsSecret" (list . "grpc"))) | quote }}, nodePort: {{ int .Values.service.nodePorts.grpc }} }
{{- end }}
{{- if .Values.check.enabled }}
http-check: { port: {{ int .Values.check.port }}, appProtocol: {{ include "weir.scheme" (list . "check") }}, nodePort: {{ int .Values.service.nodePorts.check }} }
{{- end }}
{{- if .Values.spoe.enabled }}
tcp-spoe: { port: {{ int .Values.spoe.port }}, appProtocol: tcp, nodePort: {{ int .Values.service.nodePorts.spoe }} }
{{- end }}
{{- end }}

{{/* The DNS name of one of the chart's Services. Takes the root and a suffix for the name. */}}
{{- define "weir.host" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s%s" (include "weir.fullname" $root) (index . 1) -}}
{{- printf "%s.%s.svc.%s" $name $root.Release.Namespace $root.Values.clusterDomain }}
{{- end }}

{{/* A flag's value as text. Helm passes every number as a float, and 1000000 as 1e+06. */}}
{{- define "weir.flag" -}}
{{- if kindIs "float64" . }}{{ int64 . | toString | quote }}{{ else }}{{ . | toString | quote }}{{ end }}
{{- end }}
