#!/usr/bin/env bash
# Build a real control plane and kubectl from source: build.sh FOLDER
#
# go.mod and go.sum beside this script pin every version. A program is moved into place only when it is whole,
# beside the sum of what it was built from; one that is current is left alone, so an interrupted run goes on
# where it stopped. ../find-go finds Go, or fetches it with PYTHON.
set -euo pipefail
shopt -s inherit_errexit

here=$(cd "$(dirname "$0")" && pwd)
bin=$(mkdir -p "$1" && cd "$1" && pwd)
PYTHON=${PYTHON:-python3}
case $PYTHON in
    */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; # the folder changes below
esac
export PYTHON
cd "$here"

go_needed=$(awk '$1 == "go" { print $2 }' go.mod)
kubernetes=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod) # v1.36.3
minor=${kubernetes#v1.}
minor=${minor%%.*}

ldflags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    ldflags+=" -X $package.gitVersion=$kubernetes -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    ldflags+=" -X $package.gitTreeState=archive"
done

declare -A packages=(
    [etcd]=go.etcd.io/etcd/server/v3
    [kubectl]=k8s.io/kubernetes/cmd/kubectl
    [kube-apiserver]=k8s.io/kubernetes/cmd/kube-apiserver
    [kube-controller-manager]=k8s.io/kubernetes/cmd/kube-controller-manager
)

# What a program depends on besides the compiler. Any Go that is new enough will do.
wanted=$(cat go.mod go.sum build.sh | sha256sum | cut -d ' ' -f 1)

is_current() {
    [[ -x $bin/$1 && -r $bin/.$1.from && $(<"$bin/.$1.from") == "$wanted" ]]
}

missing=()
for program in etcd kubectl kube-apiserver kube-controller-manager; do
    is_current "$program" || missing+=("$program")
done
if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi

go=$("$here/../find-go" "$go_needed")
# Settings of the machine that would change go.mod, the toolchain or the outcome.
export GOFLAGS=-mod=readonly GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0
for program in "${missing[@]}"; do
    echo "building $program ($("$go" env GOVERSION))"
    part=$bin/.$program.$$.part
    trap 'rm -f "$part"' EXIT
    "$go" build -trimpath -ldflags "$ldflags" -o "$part" "${packages[$program]}"
    rm -f "$bin/.$program.from"
    mv "$part" "$bin/$program"
    echo "$wanted" >"$bin/.$program.from.$$"
    mv "$bin/.$program.from.$$" "$bin/.$program.from"
done
