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
{{- if and $v.proxy.tls.clientCA.existingSecret (not (include "weir.proxySecrets" .)) }}
{{- $mistakes = append $mistakes "`proxy.tls.clientCA` needs TLS: name the Secrets of certificates in `proxy.tls.existingSecrets`, or `proxy` in `certManager.listeners`" }}
{{- end }}
{{- range $listener := list "grpc" "check" "spoe" "admin" }}
{{- $tls := (index $v $listener).tls }}
{{- if and $tls.clientCA.existingSecret (not (include "weir.tlsSecret" (list $ $listener))) }}
{{- $mistakes = append $mistakes (printf "`%s.tls.clientCA` needs TLS: name the Secret of the certificate in `%s.tls.existingSecret`, or `%s` in `certManager.listeners`" $listener $listener $listener) }}
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
{{- range $path, $service := dict "service" $v.service "proxy.service" $v.proxy.service }}
{{- range $key := list "loadBalancerIP" "loadBalancerClass" "loadBalancerSourceRanges" }}
{{- if and (index $service $key) (ne $service.type "LoadBalancer") }}
{{- $mistakes = append $mistakes (printf "`%s.%s` is for a load balancer: set `%s.type: LoadBalancer`" $path $key $path) }}
{{- end }}
{{- end }}
{{- if and $service.externalTrafficPolicy (eq $service.type "ClusterIP") }}
{{- $mistakes = append $mistakes (printf "`%s.externalTrafficPolicy` is for traffic from outside: set `%s.type` to `LoadBalancer` or `NodePort`" $path $path) }}
{{- end }}
{{- end }}
{{- if and $v.proxy.service.nodePort (eq $v.proxy.service.type "ClusterIP") }}
{{- $mistakes = append $mistakes "`proxy.service.nodePort` is for traffic from outside: set `proxy.service.type` to `NodePort` or `LoadBalancer`" }}
{{- end }}
{{- $nodePorts := dict }}
{{- range $listener := list "grpc" "check" "spoe" }}
{{- $port := int (index $v.service.nodePorts $listener) }}
{{- if $port }}
{{- if eq $v.service.type "ClusterIP" }}
{{- $mistakes = append $mistakes (printf "`service.nodePorts.%s` is for traffic from outside: set `service.type` to `NodePort` or `LoadBalancer`" $listener) }}
{{- end }}
{{- if not (index $v $listener).enabled }}
{{- $mistakes = append $mistakes (printf "`service.nodePorts.%s` is for a listener that is not open: set `%s.enabled: true`" $listener $listener) }}
{{- end }}
{{- if hasKey $nodePorts (toString $port) }}
{{- $mistakes = append $mistakes (printf "`service.nodePorts.%s` and `service.nodePorts.%s` are both %d: each listener has its own" (get $nodePorts (toString $port)) $listener $port) }}
{{- end }}
{{- $_ := set $nodePorts (toString $port) $listener }}
{{- end }}
{{- end }}
{{- if and (ne $v.service.type "ClusterIP") (not (include "weir.decisionPorts" .)) }}
{{- $mistakes = append $mistakes (printf "`service.type` is %s, and that Service has no listener: set `enabled: true` in `grpc`, `check` or `spoe`, or `proxy.service.type` for the proxy" $v.service.type) }}
{{- end }}
{{- if and (ne $v.service.type "ClusterIP") $v.networkPolicy.enabled $v.networkPolicy.gateways }}
{{- $networks := list }}
{{- range $v.networkPolicy.gateways }}{{ $networks = concat $networks (hasKey . "ipBlock" | ternary (list .) list) }}{{ end }}
{{- if not $networks }}
{{- $mistakes = append $mistakes (printf "`service.type` is %s, and `networkPolicy.gateways` lets in pods only: name the networks outside the cluster, `[{ ipBlock: { cidr: 10.0.0.0/8 } }]`" $v.service.type) }}
{{- end }}
{{- end }}
{{- if eq $v.kind "DaemonSet" }}
{{- if $v.autoscaling.enabled }}
{{- $mistakes = append $mistakes "`autoscaling` adds pods, and a DaemonSet has one on each node: set `autoscaling.enabled: false` or `kind: Deployment`" }}
{{- end }}
{{- if eq (toString $v.updateStrategy.type) "Recreate" }}
{{- $mistakes = append $mistakes "`updateStrategy.type` is Recreate, and a DaemonSet has `RollingUpdate` and `OnDelete`" }}
{{- end }}
{{- else if eq (toString $v.updateStrategy.type) "OnDelete" }}
{{- $mistakes = append $mistakes "`updateStrategy.type` is OnDelete, and a Deployment has `RollingUpdate` and `Recreate`" }}
{{- end }}
{{- if and (ne (toString $v.updateStrategy.type) "RollingUpdate") $v.updateStrategy.rollingUpdate }}
{{- $mistakes = append $mistakes (printf "`updateStrategy.rollingUpdate` does not go with `type: %v`: set `rollingUpdate: null`" $v.updateStrategy.type) }}
{{- end }}
{{- with $v.podDisruptionBudget }}
{{- if and (include "weir.isSet" .minAvailable) (include "weir.isSet" .maxUnavailable) }}
{{- $mistakes = append $mistakes "`podDisruptionBudget.minAvailable` and `podDisruptionBudget.maxUnavailable` are both given: Kubernetes takes one of them" }}
{{- end }}
{{- end }}
{{- with $v.certManager }}
{{- if and .listeners (not .issuerRef.name) }}
{{- $mistakes = append $mistakes "`certManager.issuerRef.name` is empty: name the Issuer, or the ClusterIssuer with `kind: ClusterIssuer`" }}
{{- end }}
{{- range .listeners }}
{{- if and (ne . "admin") (not (index $v .).enabled) }}
{{- $mistakes = append $mistakes (printf "`certManager.listeners` names `%s`, which is not open: set `%s.enabled: true`" . .) }}
{{- end }}
{{- if eq . "proxy" }}
{{- if not $v.certManager.dnsNames.proxy }}
{{- $mistakes = append $mistakes "`certManager.dnsNames.proxy` is empty: name the hosts of the proxy, `[api.example.com]`" }}
{{- end }}
{{- else if (index $v .).tls.existingSecret }}
{{- $mistakes = append $mistakes (printf "`%s.tls.existingSecret` and `certManager.listeners` both give `%s` a certificate: leave one out" . .) }}
{{- end }}
{{- end }}
{{- range $name, $names := .dnsNames }}
{{- if and $names (not (has $name $v.certManager.listeners)) }}
{{- $mistakes = append $mistakes (printf "`certManager.dnsNames.%s` has names, and `certManager.listeners` does not have `%s`" $name $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.store.redis }}
{{- if and .username (not (and .url .existingSecret)) }}
{{- $mistakes = append $mistakes "`store.redis.username` needs `store.redis.url` and `store.redis.existingSecret`, the Secret with its password; a URL in a Secret has its own user" }}
{{- end }}
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
