// Command kube-node-ready verifies a new Kubernetes node from inside the pod network, takes its
// startup taint off and labels it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// Set at build time by -ldflags "-X main.version=…".
var (
	version   = "dev"
	commit    = "unknown"
	buildDate = "unknown"
)

// The exit codes, a contract with kubelet, jobs and scripts.
const (
	exitOK          = 0 // verified, or told to stop
	exitNotVerified = 1 // or a fatal error
	exitUsage       = 2
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	os.Exit(run(os.Args[1:], os.LookupEnv, signals, os.Stdout, os.Stderr))
}

// run is the whole process but for its environment, so that tests can call it.
func run(args []string, lookupEnv func(string) (string, bool), signals <-chan os.Signal, stdout, stderr io.Writer) int {
	cfg, err := parseConfig(args, lookupEnv, stdout)
	var usageError errUsage
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return exitOK
	case errors.As(err, &usageError):
		for _, problem := range usageError {
			_, _ = fmt.Fprintf(stderr, "kube-node-ready: %s\n", problem)
		}
		return exitUsage
	case cfg.version:
		_, _ = fmt.Fprintf(stdout, "kube-node-ready %s (commit %s, built %s, %s)\n", version, commit, buildDate, runtime.Version())
		return exitOK
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	again := stopOnSignal(stop, signals)

	place := locate(cfg, lookupEnv)
	if cfg.dryRun {
		return dryRun(ctx, cfg, place, stdout)
	}
	log := newLogger(cfg, stderr).WithField("node", cfg.nodeName)
	if place.noAPI != nil {
		log.WithError(place.noAPI).Error("no access to the Kubernetes API: run in a pod with a service account token, or name a kubeconfig (--kubeconfig)")
		return exitNotVerified
	}

	recorder := metrics.New(cfg.nodeName, checks.Names(), metrics.Build{Version: version, Commit: commit})
	if cfg.enableMetrics {
		server, err := recorder.Listen(cfg.metricsPort)
		if err != nil {
			log.WithError(err).Error("start: choose another port with --metrics-port, or --enable-metrics=false")
			return exitNotVerified
		}
		defer shutdown(server, log)
	}

	verified := newAgent(cfg, place, recorder, log).run(ctx)
	switch {
	case cfg.once && !verified:
		return exitNotVerified
	case verified && !cfg.once:
		linger(cfg.metricsLinger, again, log)
	}
	return exitOK
}

// stopOnSignal calls stop at the first signal. The channel it returns is closed at the second.
func stopOnSignal(stop context.CancelFunc, signals <-chan os.Signal) <-chan struct{} {
	again := make(chan struct{})
	go func() {
		<-signals
		stop()
		<-signals
		close(again)
	}()
	return again
}

// linger keeps /metrics up for the last scrape of a pod that is being deleted.
func linger(d time.Duration, again <-chan struct{}, log *logrus.Entry) {
	if d <= 0 {
		return
	}
	log.WithField("linger", d.String()).Info("told to stop: serving the final metrics first")
	select {
	case <-time.After(d):
	case <-again:
		log.Info("told to stop again: ending at once")
	}
}

func shutdown(server *metrics.Server, log *logrus.Entry) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := server.Close(ctx); err != nil {
		log.WithError(err).Debug("metrics server")
	}
}

func newLogger(cfg config, out io.Writer) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(out)
	if cfg.logFormat == "json" {
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	}
	if level, err := logrus.ParseLevel(cfg.logLevel); err == nil {
		log.SetLevel(level)
	}
	return log
}
