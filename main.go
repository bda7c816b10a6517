// Command kube-node-ready verifies a new Kubernetes node from inside the pod network, removes its startup taint and labels it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/imunhatep/kube-node-ready/internal/agent"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// Set at build time by -ldflags "-X main.version=…".
var (
	version   = "dev"
	commit    = "unknown"
	buildDate = "unknown"
)

// The exit codes: a contract with kubelet, jobs and scripts.
const (
	exitOK          = 0 // verified, or shut down
	exitNotVerified = 1 // or interrupted (--once, --worker, --dry-run), or a fatal error
	exitUsage       = 2
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	os.Exit(run(os.Args[1:], os.LookupEnv, signals, os.Stdout, os.Stderr))
}

// run is the whole process except its environment, so that tests can call it.
func run(args []string, lookupEnv func(string) (string, bool), signals <-chan os.Signal, stdout, stderr io.Writer) int {
	cfg, err := config.Parse(args, lookupEnv, stdout)
	var usageError config.UsageError
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return exitOK
	case errors.As(err, &usageError):
		for _, problem := range usageError {
			_, _ = fmt.Fprintf(stderr, "kube-node-ready: %s\n", problem)
		}
		return exitUsage
	case cfg.Version:
		_, _ = fmt.Fprintf(stdout, "kube-node-ready %s (commit %s, built %s, %s)\n", version, commit, buildDate, runtime.Version())
		return exitOK
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	secondSignal := make(chan struct{})
	go func() {
		<-signals
		stop()
		<-signals
		close(secondSignal)
	}()

	log := newLogger(cfg, stderr).WithField("node", cfg.NodeName)
	if cfg.Worker {
		return runWorker(ctx, cfg, lookupEnv, log)
	}
	environment := kube.DetectEnvironment(cfg.Kubeconfig, lookupEnv, userAgent())
	if cfg.DryRun {
		return exitCode(agent.DryRun(ctx, cfg, environment, version, stdout))
	}
	if environment.Err != nil {
		log.WithError(environment.Err).
			Error("no access to the Kubernetes API: run in a pod with a service account token, or name a kubeconfig (--kubeconfig)")
		return exitNotVerified
	}

	recorder := metrics.New(cfg.NodeName, checklist.Names(cfg), metrics.Build{Version: version, Commit: commit})
	if cfg.EnableMetrics {
		server, err := recorder.Listen(cfg.MetricsPort)
		if err != nil {
			log.WithError(err).Error("start: choose another port with --metrics-port, or --enable-metrics=false")
			return exitNotVerified
		}
		defer shutdown(server, log)
	}

	verified := agent.New(cfg, environment, recorder, log, version).Run(ctx, secondSignal)
	return exitCode(verified || !cfg.Once)
}

// runWorker opens the port before anything else: kubelet's first probe waits for the verdict there.
func runWorker(ctx context.Context, cfg config.Config, lookupEnv func(string) (string, bool), log *logrus.Entry) int {
	worker := agent.NewWorker(cfg, log, version)
	const noTimeout = 0 // an answer waits for the whole round
	server, err := metrics.Listen(cfg.MetricsPort, worker.Handler(), noTimeout)
	if err != nil {
		log.WithError(err).Error("start: choose another port with --metrics-port")
		return exitNotVerified
	}
	defer shutdown(server, log)
	environment := kube.AnonymousEnvironment(cfg.ClusterCA, lookupEnv, userAgent())
	if environment.Err != nil {
		log.WithError(environment.Err).Error("start: check CLUSTER_CA")
		return exitNotVerified
	}
	return exitCode(worker.Run(ctx, environment))
}

func userAgent() string { return "kube-node-ready/" + version }

func exitCode(ok bool) int {
	if ok {
		return exitOK
	}
	return exitNotVerified
}

func shutdown(server *http.Server, log *logrus.Entry) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.WithError(err).Debug("metrics server")
	}
}

func newLogger(cfg config.Config, out io.Writer) *logrus.Logger {
	log := logrus.New()
	log.SetOutput(out)
	if cfg.LogFormat == "json" {
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, TimestampFormat: "15:04:05.000"})
	}
	level, _ := logrus.ParseLevel(cfg.LogLevel) // one of the four that the settings allow
	log.SetLevel(level)
	return log
}
