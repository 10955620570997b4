"""Rules that several methods of the masked loop share: schedules and denoising."""
