# docker build .  or  podman build .  from a fresh clone gives the agent's image, with --target controller the controller's.
# hack/cluster builds its images from this file, too.
# BASE is an argument because not every place can pull from Docker Hub. The version is that of go.mod's toolchain line.
ARG BASE=docker.io/library/golang:1.26.11

# The build runs on the machine's own architecture and cross-compiles. Where the builder does not say what that is
# (buildah, the old docker build), an empty platform means this machine.
FROM --platform=${BUILDPLATFORM} ${BASE} AS modules
WORKDIR /src
COPY go.mod go.sum ./
# A layer of its own, so that a change of the source does not fetch them again.
RUN go mod download

FROM modules AS build-controller
COPY controller/go.mod controller/go.sum controller/
RUN cd controller && go mod download
COPY internal/ internal/
COPY checks/ checks/
COPY metrics/ metrics/
COPY nodepatch/ nodepatch/
COPY controller/ controller/
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG COMMIT_HASH=unknown
ARG BUILD_DATE=unknown
# The CAs for https:// in NETWORK_TARGETS go into the binary, so that it is the image's only file.
RUN cp /etc/ssl/certs/ca-certificates.crt checks/roots.pem && cd controller && \
    CGO_ENABLED=0 GOOS=${TARGETOS:-$(go env GOOS)} GOARCH=${TARGETARCH:-$(go env GOARCH)} \
    go build -tags nethttpomithttp2,roots -trimpath -ldflags "-s -w -funcalign=16 -X main.version=${VERSION} -X main.commit=${COMMIT_HASH} -X main.buildDate=${BUILD_DATE}" \
    -o /out/kube-node-ready-controller .

FROM scratch AS controller
ARG VERSION=dev
ARG COMMIT_HASH=unknown
ARG BUILD_DATE=unknown
LABEL org.opencontainers.image.title="kube-node-ready-controller" \
      org.opencontainers.image.description="Reports the nodes that kube-node-ready does not verify, and replaces those that are never verified" \
      org.opencontainers.image.licenses="AGPL-3.0-only" \
      org.opencontainers.image.source="https://github.com/imunhatep/kube-node-ready" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT_HASH}" \
      org.opencontainers.image.created="${BUILD_DATE}"
COPY --from=build-controller /out/kube-node-ready-controller /kube-node-ready-controller
USER 1000:1000
ENTRYPOINT ["/kube-node-ready-controller"]

FROM modules AS build
COPY main.go ./
COPY internal/ internal/
COPY checks/ checks/
COPY metrics/ metrics/
COPY nodepatch/ nodepatch/
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG COMMIT_HASH=unknown
ARG BUILD_DATE=unknown
RUN cp /etc/ssl/certs/ca-certificates.crt checks/roots.pem && \
    CGO_ENABLED=0 GOOS=${TARGETOS:-$(go env GOOS)} GOARCH=${TARGETARCH:-$(go env GOARCH)} \
    go build -tags nethttpomithttp2,roots -trimpath -ldflags "-s -w -funcalign=16 -X main.version=${VERSION} -X main.commit=${COMMIT_HASH} -X main.buildDate=${BUILD_DATE}" \
    -o /out/kube-node-ready .

# The last stage, so that it is the default.
FROM scratch
ARG VERSION=dev
ARG COMMIT_HASH=unknown
ARG BUILD_DATE=unknown
LABEL org.opencontainers.image.title="kube-node-ready" \
      org.opencontainers.image.description="Keeps a new Kubernetes node closed until its network is proven to work" \
      org.opencontainers.image.licenses="AGPL-3.0-only" \
      org.opencontainers.image.source="https://github.com/imunhatep/kube-node-ready" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT_HASH}" \
      org.opencontainers.image.created="${BUILD_DATE}"
COPY --from=build /out/kube-node-ready /kube-node-ready
# A number, because kubelet cannot tell from a name that it is not root.
USER 1000:1000
ENTRYPOINT ["/kube-node-ready"]
