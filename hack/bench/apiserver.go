package main

import (
	"bytes"
	"context"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// usage is taken from the API server's metrics.
type usage struct {
	cpu       float64            // seconds
	resident  float64            // bytes, now
	p99       map[string]float64 // seconds, by verb
	durations map[string]buckets
}

// buckets are cumulative counts of requests by upper bound in seconds.
type buckets map[float64]float64

func (b *bench) scrape(ctx context.Context) (usage, error) {
	text, err := b.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return usage{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return usage{}, err
	}
	u := usage{durations: map[string]buckets{}}
	for _, metric := range families["process_cpu_seconds_total"].GetMetric() {
		u.cpu = metric.GetCounter().GetValue()
	}
	for _, metric := range families["process_resident_memory_bytes"].GetMetric() {
		u.resident = metric.GetGauge().GetValue()
	}
	for _, metric := range families["apiserver_request_duration_seconds"].GetMetric() {
		verb := label(metric, "verb")
		if verb == "WATCH" || verb == "CONNECT" { // they last as long as their client listens
			continue
		}
		if u.durations[verb] == nil {
			u.durations[verb] = buckets{}
		}
		for _, bucket := range metric.GetHistogram().GetBucket() {
			u.durations[verb][bucket.GetUpperBound()] += float64(bucket.GetCumulativeCount())
		}
	}
	return u, nil
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// since is the usage after before was scraped.
func (u usage) since(before usage) usage {
	d := usage{cpu: u.cpu - before.cpu, resident: u.resident, p99: map[string]float64{}}
	for verb, now := range u.durations {
		between := buckets{}
		for bound, count := range now {
			between[bound] = count - before.durations[verb][bound]
		}
		if between[math.Inf(1)] > 0 {
			d.p99[verb] = between.quantile(0.99)
		}
	}
	return d
}

// quantile interpolates within a bucket, as histogram_quantile of Prometheus does.
func (b buckets) quantile(q float64) float64 {
	var bounds []float64
	for bound := range b {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	rank, lower, below := q*b[math.Inf(1)], 0.0, 0.0
	for _, bound := range bounds {
		if count := b[bound]; count >= rank {
			if math.IsInf(bound, 1) {
				return lower
			}
			return lower + (bound-lower)*(rank-below)/(count-below)
		}
		lower, below = bound, b[bound]
	}
	return lower
}
