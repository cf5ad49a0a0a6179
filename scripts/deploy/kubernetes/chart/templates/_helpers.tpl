{{- define "rankscope.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* For a name: what a selector looks for, and what Helm's users expect. */}}
{{- define "rankscope.labels" -}}
app: {{ . }}
{{- end -}}

{{- define "rankscope.allLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Where pods run, of both DaemonSets. */}}
{{- define "rankscope.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and .Values.gpu.enabled .Values.gpu.runtimeClassName }}
runtimeClassName: {{ .Values.gpu.runtimeClassName }}
{{- end }}
{{- $selector := dict }}
{{- if .Values.gpu.enabled }}{{ $selector = merge $selector (.Values.gpu.nodeSelector | default dict) }}{{ end }}
{{- $selector = merge $selector (.Values.nodeSelector | default dict) }}
{{- with $selector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The node's folder for textfiles: node exporter's, or one from which the service answers the sweep's metrics; else nothing. */}}
{{- define "rankscope.textfile" -}}
{{- if .Values.metrics.textfile.enabled -}}
{{ .Values.metrics.textfile.hostPath }}
{{- else if and .Values.metrics.port.enabled .Values.watch.enabled .Values.sweep.enabled -}}
/run/rankscope/textfile
{{- end -}}
{{- end -}}

{{/* GPUs, to be read and not to be used: NVML and no CUDA. */}}
{{- define "rankscope.gpuEnv" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- end -}}

{{/* root, rights, and what every container has. */}}
{{- define "rankscope.security" -}}
seccompProfile: {type: RuntimeDefault}
runAsUser: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end -}}
