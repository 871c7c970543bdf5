"""The hyper-connection boundary of a decoder: combine, grouped RMSNorm, low-rank down and up, gated mix."""
