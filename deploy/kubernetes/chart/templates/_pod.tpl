{{/* Metadata and spec of a pod. */}}
{{- define "ckptd.podTemplate" -}}
metadata:
  labels:
    {{- include "ckptd.selector" . | nindent 4 }}
  {{- if .Values.daemon.metricsPort }}
  annotations:
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ .Values.daemon.metricsPort | quote }}
  {{- end }}
spec:
  serviceAccountName: {{ .Values.name }}
  automountServiceAccountToken: false
  # A Service named ckptd would set variables that look like settings.
  enableServiceLinks: false
  {{- if and (ne .Values.form "node") (ne .Values.workload "PyTorchJob") }}
  # A trainer that ends with an error starts again beside the daemons, which keep its shard.
  restartPolicy: {{ if eq .Values.workload "LeaderWorkerSet" }}Always{{ else }}OnFailure{{ end }}
  {{- end }}
  terminationGracePeriodSeconds: {{ .Values.gracePeriod }}
  {{- if and (eq .Values.workload "Job") (include "ckptd.several" .) }}
  subdomain: {{ .Values.name }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ .Values.user }}
    runAsGroup: {{ .Values.user }}
    fsGroup: {{ .Values.user }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- if eq .Values.gpus.access "dra" }}
  resourceClaims:
    - name: gpus
      resourceClaimTemplateName: {{ .Values.name }}-gpus
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.form "sidecar" }}
  initContainers:
    - restartPolicy: Always
      {{- include "ckptd.daemonContainer" . | nindent 6 }}
    {{- if .Values.trainer.waitFor }}
    -
      {{- include "ckptd.waitContainer" . | nindent 6 }}
    {{- end }}
  {{- end }}
  containers:
    {{- if eq .Values.form "node" }}
    -
      {{- include "ckptd.daemonContainer" . | nindent 6 }}
    {{- else }}
    -
      {{- include "ckptd.trainerContainer" . | nindent 6 }}
    {{- end }}
  volumes:
    - name: sockets
      {{- if eq .Values.form "node" }}
      hostPath:
        path: {{ .Values.runDir }}
        type: Directory
      {{- else }}
      emptyDir:
        medium: Memory
        sizeLimit: 16Mi
      {{- end }}
    - name: models
      persistentVolumeClaim:
        claimName: {{ .Values.models.claim }}
        readOnly: true
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: 8Gi
    {{- with .Values.daemon.slabs }}
    - name: slabs
      emptyDir:
        medium: Memory
        sizeLimit: {{ . }}
    {{- end }}
    {{- if ne .Values.form "node" }}
    - name: tmp
      emptyDir:
        sizeLimit: 16Gi
    {{- end }}
    {{- if include "ckptd.several" . }}
    - name: peers
      secret:
        secretName: {{ .Values.peerAuth.secret }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
