# Weir in an image that holds a static binary, the sample rules and nothing else: no shell, no package, no other user.
#
#   docker build --tag weir .
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --provenance=mode=max \
#       --tag registry.example.com/weir:0.1.0 --push .
#
# Each platform is built on a machine of its kind, or under emulation: nothing is cross-compiled.

# A tag and no digest, so that a rebuild has Debian's fixes of its C library; of this image only that ends up in the
# result. Who needs the same bytes again builds with `--build-arg RUST_IMAGE=docker.io/library/rust@sha256:...`.
ARG RUST_IMAGE=docker.io/library/rust:1.95-slim-bookworm

FROM ${RUST_IMAGE} AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock LICENSE limits.yaml ./
COPY src src
COPY lua lua
COPY integration/image/build.sh integration/image/weir.yaml integration/image/
# Set by the builder. A cache serves one architecture.
ARG TARGETARCH
RUN --mount=type=cache,id=weir-registry,target=/usr/local/cargo/registry \
    --mount=type=cache,id=weir-target-${TARGETARCH},target=/src/target \
    integration/image/build.sh release /image

FROM scratch
ARG REVISION=unknown
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="A rate limiter in front of APIs: a reverse proxy, and the decision service of Envoy, nginx, HAProxy, Traefik and Caddy" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/ /
# Where `weir` looks for limits.yaml, and where a volume or a ConfigMap with other rules goes.
WORKDIR /etc/weir
# By number, for Kubernetes' `runAsNonRoot`: there is no /etc/passwd. The same as in distroless images.
USER 65532:65532
# A file and no variables for the addresses, as a variable would beat the configuration that somebody mounts.
ENV WEIR_CONFIG=/usr/share/weir/weir.yaml
EXPOSE 8080 9001 9002 9003 9090
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/usr/bin/weir", "health"]
ENTRYPOINT ["/usr/bin/weir"]
CMD ["serve"]
