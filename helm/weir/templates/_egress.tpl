{{/*
The ports that a URL names, one or several addresses, separated by spaces; `?` for one that cannot be read. None for sockets,
`memory` and `echo`. Takes the URL.
*/}}
{{- define "weir.urlPorts" -}}
{{- $defaults := dict "http" "80" "h2c" "80" "https" "443" "redis" "6379" "rediss" "6379" "redis+cluster" "6379" "rediss+cluster" "6379" "redis+sentinel" "26379" "rediss+sentinel" "26379" }}
{{- $scheme := regexFind "^[A-Za-z0-9+]+:" . | trimSuffix ":" | lower }}
{{- if hasKey $defaults $scheme }}
{{- $authority := regexFind "^[^/?#]*" (regexReplaceAll "^[^:]*:/*" . "") }}
{{- /* The last `@` ends the user and the password. */}}
{{- range splitList "," (regexReplaceAll "^.*@" $authority "") }}
{{- $port := regexReplaceAll "^(\\[[^\\]]*\\]|[^:\\[]+)" . "" }}
{{- if contains "$(" . }} ?
{{- else if and (eq $port "") (ne . "") }} {{ get $defaults $scheme }}
{{- else if and (regexMatch "^:[0-9]{1,5}$" $port) (ne . $port) (ge (trimPrefix ":" $port | atoi) 1) (le (trimPrefix ":" $port | atoi) 65535) }} {{ trimPrefix ":" $port | atoi }}
{{- else }} ?
{{- end }}
{{- end }}
{{- else if not (or (has . (list "" "memory" "echo")) (has $scheme (list "unix" "redis+unix"))) }} ?
{{- end }}
{{- end }}

{{/*
The URLs that the pods connect to, by kind: a list of `from`, where it comes from, and `url`; without `url` if the chart does not
see it. Takes the root.
*/}}
{{- define "weir.urls" -}}
{{- $v := .Values }}
{{- $urls := dict "redis" list "upstreams" list "overrides" list "keys" list "traces" list }}
{{- if eq $v.store.type "redis" }}
{{- if $v.store.redis.url }}
{{- $_ := set $urls "redis" (list (dict "from" "`store.redis.url`" "url" $v.store.redis.url)) }}
{{- else }}
{{- $_ := set $urls "redis" (list (dict "from" "`store.redis.existingSecret`")) }}
{{- end }}
{{- end }}
{{- if $v.proxy.enabled }}
{{- range $v.proxy.upstreams }}
{{- $of := list }}
{{- range regexFindAll "[A-Za-z0-9+]+://[^,]*" . -1 }}
{{- $of = append $of (dict "from" "`proxy.upstreams`" "url" .) }}
{{- end }}
{{- $_ := set $urls "upstreams" (concat $urls.upstreams $of) }}
{{- end }}
{{- end }}
{{- range $v.rules.overridesUrls }}
{{- $_ := set $urls "overrides" (append $urls.overrides (dict "from" "`rules.overridesUrls`" "url" .)) }}
{{- end }}
{{- $rules := dict }}
{{- if not (include "weir.rulesExist" .) }}
{{- $rules = fromYaml $v.rules.limits }}
{{- end }}
{{- if or (and (include "weir.rulesExist" .) $v.rules.limitsKey) (hasKey $rules "Error") }}
{{- $_ := set $urls "keys" (list (dict "from" "rules")) }}
{{- else if kindIs "map" $rules.jwt }}
{{- range $rules.jwt }}
{{- if and (kindIs "map" .) .jwks_url }}
{{- $_ := set $urls "keys" (append $urls.keys (dict "from" "`jwks_url` of the rules" "url" (toString .jwks_url))) }}
{{- end }}
{{- end }}
{{- end }}
{{- with index $v.flags "otlp-endpoint" }}
{{- $_ := set $urls "traces" (list (dict "from" "`flags.otlp-endpoint`" "url" .)) }}
{{- end }}
{{- $variables := dict "WEIR_STORE" "redis" "WEIR_UPSTREAM" "upstreams" "WEIR_OVERRIDES" "overrides" "WEIR_OTLP_ENDPOINT" "traces" "OTEL_EXPORTER_OTLP_ENDPOINT" "traces" "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" "traces" }}
{{- range $v.extraEnv }}
{{- $kind := get $variables (toString .name) }}
{{- if $kind }}
{{- $from := printf "`%s` of `extraEnv`" .name }}
{{- $given := list }}
{{- if not (hasKey . "value") }}
{{- $given = list (dict "from" $from) }}
{{- else if eq $kind "redis" }}
{{- $given = list (dict "from" $from "url" .value) }}
{{- else }}
{{- range regexFindAll "[A-Za-z0-9+]+://[^,]*" (toString .value) -1 }}
{{- $given = append $given (dict "from" $from "url" .) }}
{{- end }}
{{- end }}
{{- $_ := set $urls $kind (concat (get $urls $kind) $given) }}
{{- end }}
{{- end }}
{{- toYaml $urls }}
{{- end }}

{{/*
What the NetworkPolicy lets the pods connect to, by kind: `ports`, or `all` of them, and `mistakes` where a port is to be listed in
the values. Takes the root.
*/}}
{{- define "weir.egress" -}}
{{- $policy := .Values.networkPolicy }}
{{- $examples := dict "redis" "6379" "upstreams" "3000" "overrides" "443" "keys" "443" "traces" "4318" }}
{{- range $kind, $urls := include "weir.urls" . | fromYaml }}
{{- $given := (index $policy $kind).ports }}
{{- $ports := list }}
{{- $mistakes := list }}
{{- if kindIs "slice" $given }}
{{- range $given }}{{ $ports = append $ports (int .) }}{{ end }}
{{- else if eq $given "auto" }}
{{- range $urls }}
{{- $found := regexFindAll "[0-9?]+" (include "weir.urlPorts" (.url | default "")) -1 }}
{{- $why := "" }}
{{- $example := get $examples $kind }}
{{- if eq .from "rules" }}
{{- $why = "the chart does not see whether the rules fetch keys (`jwks_url`): list the ports of these URLs" }}
{{- else if not (hasKey . "url") }}
{{- $why = printf "%s has the URL, whose port the chart does not see: list it" .from }}
{{- else if has "?" $found }}
{{- $why = printf "%s does not tell a port that the chart can read: list it" .from }}
{{- else if regexMatch "^rediss?\\+sentinel:" .url }}
{{- $why = printf "%s names Sentinels, and only they know the port of the master: list it with theirs" .from }}
{{- $example = append $found "6379" | uniq | join ", " }}
{{- end }}
{{- if $why }}
{{- $or := ternary ", or `[]` if there are none" "" (eq .from "rules") }}
{{- $mistakes = append $mistakes (printf "`networkPolicy.enabled`: %s, `networkPolicy.%s.ports: [%s]`%s" $why $kind $example $or) }}
{{- else }}
{{- range $found }}{{ $ports = append $ports (atoi .) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{ $kind }}:
  all: {{ and (eq (toString $given) "all") (not (empty $urls)) }}
  ports: [{{ include "weir.sorted" $ports }}]
  mistakes: {{ $mistakes | uniq | toJson }}
{{- end }}
{{- end }}

{{/* The order of the rules for egress. */}}
{{- define "weir.egressKinds" -}}
redis upstreams overrides keys traces
{{- end }}

{{/* Numbers in order, each once. Takes a list. */}}
{{- define "weir.sorted" -}}
{{- $padded := list }}
{{- range . }}{{ $padded = append $padded (printf "%05d" (int .)) }}{{ end }}
{{- $numbers := list }}
{{- range $padded | uniq | sortAlpha }}{{ $numbers = append $numbers (regexReplaceAll "^0+" . "") }}{{ end }}
{{- join ", " $numbers }}
{{- end }}
