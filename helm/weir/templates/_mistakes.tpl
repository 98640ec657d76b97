{{/* Checks that values.schema.json cannot express: values that are valid alone but not together. Reports all at once. */}}
{{- define "weir.mistakes" -}}
{{- $mistakes := list }}
{{- $v := .Values }}
{{- if not (or $v.proxy.enabled $v.grpc.enabled $v.check.enabled $v.spoe.enabled) }}
{{- $mistakes = append $mistakes "no listener is open: set `enabled: true` in `grpc`, `check`, `spoe` or `proxy`" }}
{{- end }}
{{- if and $v.proxy.enabled (not $v.proxy.upstreams) }}
{{- $mistakes = append $mistakes "`proxy.upstreams` is empty: say where allowed requests go, `upstreams: [\"http://app.default.svc:3000\"]`" }}
{{- end }}
{{- $ports := dict }}
{{- range $listener := list "admin" "proxy" "grpc" "check" "spoe" }}
{{- $settings := index $v $listener }}
{{- if or (eq $listener "admin") $settings.enabled }}
{{- $port := int $settings.port | toString }}
{{- if hasKey $ports $port }}
{{- $mistakes = append $mistakes (printf "`%s.port` and `%s.port` are both %s: each listener has its own" (get $ports $port) $listener $port) }}
{{- end }}
{{- $_ := set $ports $port $listener }}
{{- end }}
{{- end }}
{{- if and (eq $v.store.type "redis") (not $v.store.redis.url) (not $v.store.redis.existingSecret) }}
{{- $mistakes = append $mistakes "`store.type` is redis: give `store.redis.url`, or `store.redis.existingSecret`, the name of a Secret that has the URL" }}
{{- end }}
{{- if and (ne $v.store.type "redis") (or $v.store.redis.url $v.store.redis.existingSecret) }}
{{- $mistakes = append $mistakes "`store.redis` is given and `store.type` is memory: set `store.type: redis`" }}
{{- end }}
{{- with $v.rules }}
{{- if include "weir.rulesExist" $ }}
{{- if or .limits .overrides .files }}
{{- $mistakes = append $mistakes "the rules are in `rules.existingConfigMap` or `rules.existingVolume`, so `rules.limits`, `rules.overrides` and `rules.files` would not be used: leave them out" }}
{{- end }}
{{- if and .existingConfigMap .existingVolume }}
{{- $mistakes = append $mistakes "`rules.existingConfigMap` and `rules.existingVolume` are both given: the rules are in one of them" }}
{{- end }}
{{- if not (or .limitsKey .envoyRatelimitKeys) }}
{{- $mistakes = append $mistakes "`rules.limitsKey` is empty and there are no `rules.envoyRatelimitKeys`: name a file of rules" }}
{{- end }}
{{- else }}
{{- range .envoyRatelimitKeys }}
{{- if not (hasKey $v.rules.files .) }}
{{- $mistakes = append $mistakes (printf "`rules.envoyRatelimitKeys` names `%s`, and `rules.files` has no such file" .) }}
{{- end }}
{{- end }}
{{- range list "limits.yaml" "overrides.yaml" }}
{{- if hasKey $v.rules.files . }}
{{- $mistakes = append $mistakes (printf "`rules.files` has a file `%s`: write it as `rules.%s`" . (trimSuffix ".yaml" .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and $v.proxy.tls.clientCA.existingSecret (not $v.proxy.tls.existingSecrets) }}
{{- $mistakes = append $mistakes "`proxy.tls.clientCA` needs TLS: name the Secrets of certificates in `proxy.tls.existingSecrets`" }}
{{- end }}
{{- range $listener := list "grpc" "check" "spoe" "admin" }}
{{- $tls := (index $v $listener).tls }}
{{- if and $tls.clientCA.existingSecret (not $tls.existingSecret) }}
{{- $mistakes = append $mistakes (printf "`%s.tls.clientCA` needs TLS: name the Secret of the certificate in `%s.tls.existingSecret`" $listener $listener) }}
{{- end }}
{{- end }}
{{- with $v.proxy.upstreamTLS }}
{{- if ne (empty .certKey) (empty .keyKey) }}
{{- $mistakes = append $mistakes "`proxy.upstreamTLS.certKey` and `keyKey` come together" }}
{{- end }}
{{- end }}
{{- with $v.store.redis.tls }}
{{- if ne (empty .certKey) (empty .keyKey) }}
{{- $mistakes = append $mistakes "`store.redis.tls.certKey` and `keyKey` come together" }}
{{- end }}
{{- end }}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- $mistakes = append $mistakes (printf "`autoscaling.minReplicas` is %d and `maxReplicas` %d" (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) }}
{{- end }}
{{- if and $v.autoscaling.enabled (not (or $v.autoscaling.targetCPUUtilizationPercentage $v.autoscaling.targetMemoryUtilizationPercentage $v.autoscaling.metrics)) }}
{{- $mistakes = append $mistakes "`autoscaling` has nothing to go by: set `targetCPUUtilizationPercentage`, or give `metrics`" }}
{{- end }}
{{- range $route := list "httpRoute" "ingress" }}
{{- if and (index $v.proxy $route).enabled (not $v.proxy.enabled) }}
{{- $mistakes = append $mistakes (printf "`proxy.%s` leads to the proxy: set `proxy.enabled: true`" $route) }}
{{- end }}
{{- end }}
{{- if and $v.proxy.httpRoute.enabled (not $v.proxy.httpRoute.parentRefs) }}
{{- $mistakes = append $mistakes "`proxy.httpRoute.parentRefs` is empty: name the Gateway, `parentRefs: [{ name: web }]`" }}
{{- end }}
{{- if and $v.envoyGateway.enabled (not $v.grpc.enabled) }}
{{- $mistakes = append $mistakes "`envoyGateway` asks over gRPC: set `grpc.enabled: true`" }}
{{- end }}
{{- if and $v.envoyGateway.enabled (not $v.envoyGateway.targetRefs) }}
{{- $mistakes = append $mistakes "`envoyGateway.targetRefs` is empty: name the Gateway or the routes whose requests are limited" }}
{{- end }}
{{- if and $v.istio.enabled (not $v.grpc.enabled) }}
{{- $mistakes = append $mistakes "`istio` asks over gRPC: set `grpc.enabled: true`" }}
{{- end }}
{{- if and $v.istio.enabled (not $v.istio.selector) (not $v.istio.targetRefs) (has $v.istio.namespace (list "" .Release.Namespace)) }}
{{- $mistakes = append $mistakes "`istio` would have Weir's own pods ask Weir: say which workloads ask, by `selector`, `targetRefs` or another `namespace`" }}
{{- end }}
{{- if and $v.istio.selector $v.istio.targetRefs }}
{{- $mistakes = append $mistakes "`istio.selector` and `istio.targetRefs` are both given: the workloads are named by one of them" }}
{{- end }}
{{- if and $v.traefik.enabled (not $v.check.enabled) }}
{{- $mistakes = append $mistakes "`traefik` asks over HTTP: set `check.enabled: true`" }}
{{- end }}
{{- if $v.networkPolicy.enabled }}
{{- range include "weir.egress" . | fromYaml }}
{{- $mistakes = concat $mistakes .mistakes }}
{{- end }}
{{- end }}
{{- if $mistakes }}
{{- fail (printf "\n\n%s\n" (join "\n" $mistakes)) }}
{{- end }}
{{- end }}
