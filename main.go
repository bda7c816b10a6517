// Command kube-node-ready verifies a new Kubernetes node from inside the pod network, removes its startup taint and labels it.
package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/internal/agent"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/oneround"
	"github.com/imunhatep/kube-node-ready/metrics"
)

// Set at build time by -ldflags "-X main.version=…".
var (
	version   = "dev"
	commit    = "unknown"
	buildDate = "unknown"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	os.Exit(run(os.Args[1:], os.LookupEnv, signals, os.Stdout, os.Stderr))
}

// run is the whole process except its environment, so that tests can call it.
func run(args []string, lookupEnv func(string) (string, bool), signals <-chan os.Signal, stdout, stderr io.Writer) int {
	cfg, err := config.Parse(args, lookupEnv, stdout)
	program := config.Program{Name: "kube-node-ready", Version: version, Commit: commit, BuildDate: buildDate}
	if code, ends := program.Ends(cfg.Version, err, stdout, stderr); ends {
		return code
	}

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	process, kill := context.WithCancel(context.Background())
	defer kill()
	go func() {
		<-signals
		stop()
		<-signals
		kill()
	}()

	log := newLogger(cfg, stderr).WithField("node", cfg.NodeName)
	if cfg.Worker {
		return runWorker(ctx, cfg, lookupEnv, log)
	}
	environment := kube.DetectEnvironment(cfg.Kubeconfig, lookupEnv, userAgent())
	if cfg.DryRun {
		return exitCode(oneround.DryRun(ctx, cfg, environment, version, stdout))
	}
	if environment.Err != nil {
		log.WithError(environment.Err).
			Error("no access to the Kubernetes API: run in a pod with a service account token, or name a kubeconfig (--kubeconfig)")
		return config.ExitError
	}

	recorder := metrics.New(cfg.NodeName, checklist.Names(cfg), version, commit)
	if cfg.EnableMetrics {
		server, err := metrics.Listen(cfg.MetricsPort, recorder.Handler(), 10*time.Second)
		if err != nil {
			log.WithError(err).Error("cannot start: choose another port with --metrics-port, or --enable-metrics=false")
			return config.ExitError
		}
		defer shutdown(server, log)
	}

	verified := agent.New(cfg, environment, recorder, log, version).Run(ctx, process)
	return exitCode(verified || !cfg.Once)
}

// runWorker opens the port before anything else: kubelet's first probe waits for the verdict there.
func runWorker(ctx context.Context, cfg config.Config, lookupEnv func(string) (string, bool), log *logrus.Entry) int {
	worker := oneround.NewWorker(cfg, log, version)
	server, err := metrics.Listen(cfg.MetricsPort, worker.Handler(), 0) // without a limit: an answer waits for the whole round
	if err != nil {
		log.WithError(err).Error("cannot start: choose another port with --metrics-port")
		return config.ExitError
	}
	defer shutdown(server, log)
	environment := kube.AnonymousEnvironment(cfg.ClusterCA, lookupEnv, userAgent())
	if environment.Err != nil {
		log.WithError(environment.Err).Error("cannot start: check CLUSTER_CA")
		return config.ExitError
	}
	return exitCode(worker.Run(ctx, environment))
}

func userAgent() string { return "kube-node-ready/" + version }

func exitCode(ok bool) int {
	if ok {
		return config.ExitOK
	}
	return config.ExitError
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
