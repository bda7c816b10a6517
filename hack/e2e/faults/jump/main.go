// Command jump builds the agent from the code as it is, on a Go runtime whose wall clock can be moved
// while it runs: SIGUSR1 sets it an hour ahead, SIGUSR2 an hour back. The monotonic clock stays, as it
// does when somebody sets a machine's clock. `go build -overlay` puts the other runtime into what
// `make build` makes; neither the repository nor the Go installation is changed, and no clock but that
// of the one process moves.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// agentPart goes into the agent's package main. It says when the clock has been moved.
const agentPart = `package main

import (
	"os"
	"os/signal"
	"syscall"
	_ "unsafe"
)

//go:linkname wallJump runtime.wallJump
var wallJump int64

func init() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for which := range told {
			if which == syscall.SIGUSR1 {
				wallJump += 3600
			} else {
				wallJump -= 3600
			}
			_, _ = os.Stderr.WriteString("{\"msg\":\"clock set\"}\n")
		}
	}()
}
`

// Both are lines of Go's own runtime, with what is added behind them.
const (
	declared      = "func time_now() (sec int64, nsec int32, mono int64)\n"
	declaredJump  = declared + "\n//go:linkname wallJump\nvar wallJump int64 // seconds\n"
	readSeconds   = "\tMOVQ\t16(SP), AX\t// realtime sec\n"
	readAndJumped = readSeconds + "\tADDQ\truntime·wallJump(SB), AX\n"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: jump REPOSITORY BINARY")
		os.Exit(2)
	}
	if err := build(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "jump:", err)
		os.Exit(1)
	}
}

func build(repository, binary string) error {
	if runtime.GOOS+"/"+runtime.GOARCH != "linux/amd64" {
		fmt.Fprintln(os.Stderr, "jump: left out, time.Now is moved for linux/amd64 only")
		return nil
	}
	env := exec.Command("go", "env", "GOROOT", "GOFLAGS")
	env.Dir = repository // its go.mod may name a toolchain
	said, err := env.Output()
	if err != nil {
		return err
	}
	goroot, goflags, _ := strings.Cut(strings.TrimRight(string(said), "\n"), "\n")
	work, err := os.MkdirTemp("", "jump")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	replaced := map[string]string{filepath.Join(repository, "zz_jump.go"): filepath.Join(work, "zz_jump.go")}
	if err := os.WriteFile(filepath.Join(work, "zz_jump.go"), []byte(agentPart), 0o600); err != nil {
		return err
	}
	for name, change := range map[string][2]string{"timeasm.go": {declared, declaredJump}, "time_linux_amd64.s": {readSeconds, readAndJumped}} {
		path := filepath.Join(goroot, "src", "runtime", name)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Count(string(text), change[0]) != 1 {
			return fmt.Errorf("%s is not what it was with Go 1.26: %q is not there once", path, change[0])
		}
		replaced[path] = filepath.Join(work, name)
		if err := os.WriteFile(replaced[path], []byte(strings.Replace(string(text), change[0], change[1], 1)), 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(work, "overlay.json"), overlay, 0o600); err != nil {
		return err
	}
	cmd := exec.Command("make", "--no-print-directory", "-C", repository, "build", "BIN="+binary)
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(goflags+" -overlay="+filepath.Join(work, "overlay.json")))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}
